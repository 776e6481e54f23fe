import pytest
import torch
from torch.nn import functional as F

from flightning.algorithms import FD, SOLO
from flightning.callbacks import Federation
from flightning.errors import ConfigurationError
from tests.classification import BatchNormNet, assert_equal_nested, assert_resumes, make_data, make_module, run

C = 3


class Probe(FD):
    def on_federation_start(self):
        super().on_federation_start()
        self.received, self.sent, self.seen = {}, {}, []

    def on_client_start(self, download):
        super().on_client_start(download)
        self.received[self.round_index, self.client.id] = download.get("logits")

    def regularization(self, batch):
        terms = super().regularization(batch)
        self.seen.append((self.round_index, self.layer_output("net").detach(), batch[1], self._targets, dict(terms)))
        return terms

    def on_client_end(self):
        upload = super().on_client_end()
        self.sent[self.round_index, self.client.id] = upload["logits"].clone()
        return upload


def kept(module):
    return {k: v["weights"] for k, v in module.client_states.state_dict().items()}


def test_gamma_zero_is_solo_bit_for_bit():
    fd, solo = run(FD, gamma=0.0)[0], run(SOLO)[0]
    assert_equal_nested(kept(fd), kept(solo))


def test_targets_leave_the_client_itself_out():
    module, _ = run(Probe, 2)
    for client in range(3):
        received = module.received[1, client]
        for c in range(C):
            others = [module.sent[0, k][c] for k in range(3) if k != client and module.sent[0, k][c].any()]
            expected = torch.stack(others).mean(0) if others else torch.zeros(C)
            torch.testing.assert_close(received[c], expected)


def test_leave_one_out_is_the_formula_of_the_paper():
    # (sum_i F_i - F_k) / (M - 1) with all three clients owning the class
    data = make_data(classes=((0, 1, 2),) * 3)
    module, _ = run(Probe, 2, data=data)
    tables = torch.stack([module.sent[0, k] for k in range(3)])
    torch.testing.assert_close(module.received[1, 1], (tables.sum(0) - tables[1]) / 2)


def test_a_single_client_has_nobody_to_imitate():
    data = make_data(classes=((0, 1, 2),))
    fd, solo = run(FD, data=data)[0], run(SOLO, data=data)[0]
    assert_equal_nested(kept(fd), kept(solo))


def test_sent_logits_are_the_means_of_a_clean_pass():
    class Check(Probe):
        def on_client_end(self):
            upload = super().on_client_end()
            inputs, labels = (torch.cat(x) for x in zip(*self.client_batches(), strict=True))
            with torch.no_grad():
                logits = self.net(inputs)
            for c in range(C):
                mine = logits[labels == c]
                expected = mine.mean(0) if len(mine) else torch.zeros(C)
                torch.testing.assert_close(upload["logits"][c], expected)
            return upload

    run(Check, 1)


def test_means_over_the_training_steps():
    module, _ = run(Probe, 1, data=make_data(classes=((0, 1, 2),)), logits="training")
    logits, labels = (torch.cat([s[i] for s in module.seen]) for i in (1, 2))
    expected = torch.stack([logits[labels == c].mean(0) for c in range(C)])
    torch.testing.assert_close(module.sent[0, 0], expected)


def test_the_term_is_soft_cross_entropy_with_the_others():
    module, _ = run(Probe, 2, gamma=0.7)
    _, logits, labels, targets, terms = next(s for s in module.seen if s[0] == 1)
    soft = targets.softmax(1)[labels]
    known = torch.tensor([bool(targets[y].any()) for y in labels])
    expected = 0.7 * (-(soft * F.log_softmax(logits, 1)).sum(1) * known).mean()
    torch.testing.assert_close(terms["distillation"].detach(), expected)


def test_a_class_nobody_else_has_adds_nothing():
    module, _ = run(Probe, 2, data=make_data(classes=((0,), (1, 2), (1, 2))))
    first = module.received[1, 0]
    assert not first[0].any()
    terms = [s[4]["distillation"].item() for s in module.seen if s[0] == 1 and (s[2] == 0).all()]
    assert terms
    assert not any(terms)


def test_first_round_has_no_targets_and_bytes_are_tables_in_place_of_weights():
    module, rounds = run(Probe, 2)
    assert all(module.received[0, k] is None for k in range(3))
    assert "round/distillation" not in rounds[0]
    table = 3 * 4 * C * C
    assert [r["round/bytes_up"] for r in rounds] == [table, table]
    assert [r["round/bytes_down"] for r in rounds] == [0, table]


def test_the_server_keeps_tables_of_clients_that_pause():
    module, _ = run(Probe, 6, federation=Federation(participation=1))
    last = {}
    for (_, client), table in module.sent.items():
        last[client] = table
    assert_equal_nested(module.server_state.tables, {k: last[k] for k in module.server_state.tables})
    assert len(last) > 1


def test_evaluation_is_the_mean_over_clients():
    _, rounds = run(FD, 1)
    assert "val/accuracy_std" in rounds[0]


def test_batch_norm_mode_is_restored():
    module, _ = run(FD, 2, net=BatchNormNet)
    assert all(torch.isfinite(w).all() for weights in kept(module).values() for w in weights.values())


def test_a_frozen_layer_stays_frozen():
    class Frozen(FD):
        def on_client_start(self, download):
            super().on_client_start(download)
            self.net.fc1[1].eval()

        def on_client_end(self):
            upload = super().on_client_end()
            self.modes = self.net.training, self.net.fc1[1].training
            return upload

    assert run(Frozen, 1, net=BatchNormNet)[0].modes == (True, False)


def test_means_over_parts_of_batches_are_refused():
    class Sharded(FD):
        def on_federation_start(self):
            self.federated_data.batch_shard = (0, 2)
            super().on_federation_start()

    with pytest.raises(
        ConfigurationError, match=r"`logits='training'` averages .* under `ddp` .*: set `logits: clean`"
    ):
        run(Sharded, 1, logits="training")


def test_resume_is_bit_identical(tmp_path):
    assert_resumes(FD, tmp_path)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"gamma": -1.0}, "`gamma=-1.0` must be at least 0: use 0 for SOLO"),
        ({"logits": "last"}, "`logits='last'` must"),
    ],
)
def test_refusals(option, message):
    with pytest.raises(ConfigurationError, match=message):
        make_module(FD, **option)
