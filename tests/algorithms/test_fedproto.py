import pytest
import torch
from torch.nn import functional as F

from flightning.algorithms import SOLO
from flightning.algorithms.fedproto import FedProto
from flightning.callbacks import Federation
from flightning.errors import ConfigurationError
from tests.classification import assert_equal_nested, assert_resumes, make_data, make_module, run


def features_of(module, weights, inputs):
    return torch.func.functional_call(module.net.fc1, {n[8:]: w for n, w in weights.items() if "fc1" in n}, (inputs,))


def test_lambda_zero_is_solo():
    solo, proto = (run(cls, 3, **kw)[0] for cls, kw in ((SOLO, {}), (FedProto, {"lam": 0.0})))
    for client in range(3):
        assert_equal_nested(solo.personal_weights(client), proto.personal_weights(client))


def test_first_round_is_solo():
    solo, proto = (run(cls, 1)[0] for cls in (SOLO, FedProto))
    for client in range(3):
        assert_equal_nested(solo.personal_weights(client), proto.personal_weights(client))


def test_prototypes_are_plain_means_over_owners_of_mean_features():
    # clients hold the classes (0, 1), (1, 2), (0, 2): each class has two owners of unequal size
    data = make_data(per_class=[2, 4, 6])
    module, _ = run(FedProto, 1, data)
    for c in range(3):
        means = []
        for client, part in enumerate(data.parts):
            mine = part[data.train_source.labels[part] == c]
            if len(mine):
                features = features_of(module, module.personal_weights(client), data.train_source.inputs[mine])
                means.append(features.mean(0))
        assert len(means) == 2
        torch.testing.assert_close(module.server_state.prototypes[str(c)], torch.stack(means).mean(0))


def test_second_round_pulls_features_to_the_prototypes():
    # one full-batch step without momentum history: the gradient is that of CE + 0.7 MSE(z, P_y), by hand
    data = make_data(batch_size=12, shuffle=False)
    kept, _ = run(FedProto, 1, make_data(batch_size=12, shuffle=False), Federation(local_steps=1), lam=0.7)
    federation = Federation(local_steps=1, persist_client_optimizer=False)
    module, _ = run(FedProto, 2, data, federation, lam=0.7)
    start = make_module(FedProto)
    start.start_federation(3, "average")
    start.load_weights(kept.personal_weights(1))
    part = data.parts[1]
    inputs, targets = data.train_source.inputs[part], data.train_source.targets[part]
    z = start.net.fc1(inputs)
    goals = torch.stack([kept.server_state.prototypes[str(int(y))] for y in targets])
    loss = F.cross_entropy(start.net.head(z), targets) + 0.7 * ((z - goals) ** 2).mean()
    names = [n for n, _ in start.named_parameters()]
    for name, gradient in zip(names, torch.autograd.grad(loss, list(start.parameters())), strict=True):
        expected = kept.personal_weights(1)[name] - 0.01 * gradient
        torch.testing.assert_close(module.personal_weights(1)[name], expected)


def test_term_is_the_mean_over_all_samples_of_the_batch():
    # a sample whose class has no prototype adds 0 and counts
    class Checked(FedProto):
        def regularization(self, batch):
            terms = super().regularization(batch)
            squares = (self.penultimate - prototype).square() * (batch[1] == 0)[:, None]
            torch.testing.assert_close(terms["prototype"], 0.7 * squares.mean())
            return terms

    prototype = torch.randn(5, generator=torch.Generator().manual_seed(0))
    module = make_module(Checked, lam=0.7)
    module.server_state.prototypes = {"0": prototype}
    _, rounds = run(module, 1)
    assert rounds[0]["round/prototype"] > 0


def test_class_that_nobody_sends_keeps_its_prototype():
    module = make_module(FedProto)
    module.server_state.prototypes = {"0": torch.ones(5), "1": torch.zeros(5)}
    module.aggregate({"prototypes": {4: {"1": torch.full((5,), 2.0)}}})
    assert torch.equal(module.server_state.prototypes["0"], torch.ones(5))
    assert torch.equal(module.server_state.prototypes["1"], torch.full((5,), 2.0))


def test_bytes_are_prototypes_in_place_of_weights():
    # up |C_k| d = 2 x 5 floats per client; down C d = 3 x 5 from the second round on
    _, rounds = run(FedProto, 2)
    assert [r["round/bytes_up"] for r in rounds] == [3 * 2 * 5 * 4] * 2
    assert [r["round/bytes_down"] for r in rounds] == [0, 3 * 3 * 5 * 4]
    assert rounds[1]["round/extra_bytes_up"] == rounds[1]["round/bytes_up"]


def test_both_ways_of_inference_are_reported():
    _, rounds = run(FedProto, 2)
    assert {"val/accuracy", "val/accuracy_std", "val/prototype_accuracy", "val/prototype_accuracy_std"} <= set(
        rounds[1]
    )


def test_nearest_prototype_is_counted_by_hand():
    data = make_data()
    module, rounds = run(FedProto, 1, data)
    table = torch.stack([module.server_state.prototypes[str(c)] for c in range(3)])
    inputs, targets = data.test_source.inputs, data.test_source.targets
    scores = []
    for client in range(3):
        z = features_of(module, module.personal_weights(client), inputs)
        scores.append((torch.cdist(z, table).argmin(1) == targets).float().mean())
    assert rounds[0]["val/prototype_accuracy"] == pytest.approx(float(torch.stack(scores).mean()))


def test_state_does_not_alias_live_weights():
    module, _ = run(FedProto, 2)
    live = {p.data_ptr() for p in module.parameters()}
    assert not live & {w.data_ptr() for w in module.personal_weights(0).values()}


def test_partial_participation_leaves_others_alone():
    module, _ = run(FedProto, 1, federation=Federation(participation=1))
    assert len(module.client_states) == 1


def test_resume(tmp_path):
    assert_resumes(FedProto, tmp_path)


def test_negative_lambda_is_refused():
    with pytest.raises(ConfigurationError, match=r"`lam=-1` must be at least 0"):
        make_module(FedProto, lam=-1)
