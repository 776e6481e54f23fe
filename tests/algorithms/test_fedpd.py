import pytest
import torch

from flightning.algorithms import FedDyn, FedDynMixin, FedPD, FedPDMixin
from flightning.callbacks import Federation
from flightning.errors import ConfigurationError
from tests.classification import BatchNormNet, assert_resumes, make_data, make_module, run
from tests.problems import fit_quadratic, make_trainer

H, B, LR = (1.0, 3.0, 10.0), (-1.0, 0.5, 2.0), 0.02


def test_without_silence_it_is_feddyn():
    # reference: equal to 1e-12 over 30 rounds, with g_k = -lambda_k
    ours = fit_quadratic(FedPDMixin, 30, eta=2.0, p=0.0)
    theirs = fit_quadratic(FedDynMixin, 30, alpha=0.5)
    assert ours.w.item() == pytest.approx(theirs.w.item(), abs=1e-12)


def test_silent_rounds_match_the_algorithm_written_out():
    module = fit_quadratic(FedPDMixin, 6, eta=2.0, p=0.5)
    talks = [module._communicated(t) for t in range(6)]
    assert True in talks
    assert False in talks
    w, starts, duals = 0.0, [0.0] * 3, [0.0] * 3
    for talk in talks:
        for i, (h, b) in enumerate(zip(H, B, strict=True)):
            x = starts[i]
            for _ in range(5):
                x -= LR * (h * (x - b) + duals[i] + (x - starts[i]) / 2.0)
            duals[i] += (x - starts[i]) / 2.0
            starts[i] = x + 2.0 * duals[i]
        if talk:
            w = sum(starts) / 3
            starts = [w] * 3
    assert module.w.item() == pytest.approx(w, rel=1e-12)


def test_reaches_the_optimum_and_the_duals_cancel():
    federation = Federation(local_steps=20, local_loop="fused")
    module = fit_quadratic(FedPDMixin, 50, federation=federation, eta=0.5, module_kwargs={"lr": 0.08})
    assert module.w.item() == pytest.approx(20.5 / 14, abs=1e-7)
    duals = [state["drift"]["w"].item() / 0.5 for state in module.client_states.state_dict().values()]
    assert sum(duals) == pytest.approx(0.0, abs=1e-6)


def test_nothing_crosses_in_silent_rounds():
    module, rounds = run(FedPD, 6, p=0.5)
    size = 3 * 4 * sum(p.numel() for p in module.parameters())
    for t, metrics in enumerate(rounds):
        assert metrics["round/bytes_up"] == (size if module._communicated(t) else 0)
        assert metrics["round/bytes_down"] == (size if module._communicated(t - 1) else 0)
        assert metrics["round/extra_bytes_up"] == metrics["round/extra_bytes_down"] == 0


def test_ready_made_class_is_feddyn_on_a_network_also_for_clients_of_unequal_size():
    sizes = {"per_class": [3, 6, 12]}
    ours = run(FedPD, 3, make_data(**sizes), eta=5.0)[0]
    theirs = run(FedDyn, 3, make_data(**sizes), alpha=0.2)[0]
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_global_weights_stay_between_communications():
    class Watching(FedPD):
        def on_round_end(self):
            super().on_round_end()
            self.seen = [*getattr(self, "seen", []), self.global_weights["net.head.bias"].clone()]

    module, _ = run(Watching, 6, p=0.5)
    for t in range(1, 6):
        assert torch.equal(module.seen[t], module.seen[t - 1]) != module._communicated(t)


def test_batch_norm_statistics_stay_with_a_silent_client():
    module, _ = run(FedPD, 6, net=BatchNormNet, p=0.5)
    kept = [s.get("weights", {}) for s in module.client_states.state_dict().values()]
    assert all(("net.fc1.1.running_var" in k) != module._communicated(5) for k in kept)
    assert all(torch.isfinite(w).all() for w in module.state_dict().values())


class Silent(FedPD):
    def _communicated(self, round_index):
        return round_index < 0


def test_weights_of_its_own_do_not_crowd_out_a_silent_clients_point():
    federation = Federation(local_epochs=2, buffers="local")
    module, _ = run(Silent, 2, net=BatchNormNet, federation=federation, p=0.5)
    kept = [s["weights"] for s in module.client_states.state_dict().values()]
    assert all({"net.head.weight", "net.fc1.1.running_var"} <= set(k) for k in kept)
    assert not torch.equal(kept[0]["net.head.weight"], kept[1]["net.head.weight"])


def test_a_silent_client_is_validated_with_the_global_weights_and_its_own_statistics():
    federation = Federation(local_epochs=2, buffers="local")
    module, _ = run(Silent, 1, net=BatchNormNet, federation=federation, p=0.5)
    assert {n for n in module.personal_weights(0) if "running" not in n and "num_batches" not in n} == set()


def test_client_whose_update_was_left_out_begins_at_what_it_received():
    # round 0 is silent, so client 0 keeps its own point; its upload of round 1 is broken, so it still has it in round 2
    class Broken(FedPD):
        def _communicated(self, round_index):
            return round_index != 0

        def on_client_start(self, download):
            super().on_client_start(download)
            starts[self.round_index, self.client.id] = torch.equal(
                self.net.head.bias, self.global_weights["net.head.bias"]
            )

        def on_client_end(self):
            upload = super().on_client_end()
            if (self.round_index, self.client.id) == (1, 0):
                upload["weights"]["net.head.bias"] = torch.full((3,), torch.nan)
            return upload

    starts = {}
    run(Broken, 3, p=0.5)
    assert not starts[1, 0]
    assert starts[2, 0]


def test_fast_dev_run_is_no_partial_participation():
    trainer = make_trainer(1, fast_dev_run=True)
    trainer.fit(make_module(FedPD), datamodule=make_data())


def test_resume(tmp_path):
    assert_resumes(FedPD, tmp_path, p=0.5)


def test_partial_participation_is_refused():
    with pytest.raises(ConfigurationError, match=r"FedPD needs all 3 clients in every round, but the cohort has 2"):
        run(FedPD, 1, federation=Federation(participation=2))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"eta": 0}, r"`eta=0` must be above 0"), ({"p": 1.0}, r"`p=1.0` must lie in \[0, 1\)")],
)
def test_refusals(options, message):
    with pytest.raises(ConfigurationError, match=message):
        make_module(FedPD, **options)
