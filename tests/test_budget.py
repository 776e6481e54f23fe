import copy

import pytest

from flightning.budget import scale_rounds
from flightning.errors import ConfigurationError


def config(rounds=120, **scheduler):
    return {"trainer": {"max_epochs": rounds}, "lr_scheduler": {"class_path": "X", "init_args": scheduler}}


def test_the_whole_budget_changes_nothing():
    whole = config(milestones=[40, 80])
    before = copy.deepcopy(whole)
    assert scale_rounds(whole, 1.0) == ""
    assert whole == before


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("milestones", [40, 80], [4, 8]),
        ("step_size", 30, 3),
        ("T_max", 120, 12),
        ("gamma", 0.99, 0.99**10),
        ("patience", 20, 2),
        ("cooldown", 10, 1),
        ("total_steps", 120, 12),
        ("epochs", 120, 12),
        ("step_size_up", 30, 3),
        ("step_size_down", 40, 4),
    ],
)
def test_the_schedule_keeps_its_shape(name, before, after):
    scaled = config(**{name: before})
    notice = scale_rounds(scaled, 0.1)
    assert scaled["trainer"]["max_epochs"] == 12
    assert scaled["lr_scheduler"]["init_args"][name] == pytest.approx(after)
    assert notice.startswith("Budget 0.1: 12 rounds in place of 120, learning-rate schedule scaled with them (")


def test_the_factor_of_a_step_is_kept():
    scaled = config(milestones=[40, 80], gamma=0.5)
    scale_rounds(scaled, 0.1)
    assert scaled["lr_scheduler"]["init_args"] == {"milestones": [4, 8], "gamma": 0.5}


@pytest.mark.parametrize("scheduler", [{"gamma": 1.0}, {"lr_lambda": "f"}, {"patience": 0}])
def test_a_schedule_that_is_not_scaled_is_said(scheduler):
    scaled = config(**scheduler)
    notice = scale_rounds(scaled, 0.1)
    assert scaled["lr_scheduler"]["init_args"] == scheduler
    assert notice.startswith("Budget 0.1: 12 rounds in place of 120, learning-rate schedule not scaled. These are not")


def test_without_a_schedule_none_is_mentioned():
    assert "schedule" not in scale_rounds({"trainer": {"max_epochs": 100}}, 0.1)


def test_the_decay_of_each_round_is_scaled_beside_the_length_of_cycles():
    scaled = config(step_size_up=30, step_size_down=None, gamma=0.99)
    scale_rounds(scaled, 0.1)
    arguments = scaled["lr_scheduler"]["init_args"]
    assert arguments == {"step_size_up": 3, "step_size_down": None, "gamma": pytest.approx(0.99**10)}


def test_at_least_one_round_and_one_evaluation_are_left():
    scaled = {"trainer": {"max_epochs": 100, "check_val_every_n_epoch": 5}, "lr_scheduler": None}
    notice = scale_rounds(scaled, 0.001)
    assert scaled["trainer"] == {"max_epochs": 1, "check_val_every_n_epoch": 1}
    assert "an evaluation every round in place of 5" in notice


@pytest.mark.parametrize(("budget", "every"), [(0.5, 2), (0.2, 1), (0.6, 3), (0.47, 1)])
def test_evaluations_are_scaled_and_the_last_round_is_evaluated(budget, every):
    # every 5 of 100 rounds; of 47 rounds, whose only divisors are 1 and 47, every one
    scaled = {"trainer": {"max_epochs": 100, "check_val_every_n_epoch": 5}}
    scale_rounds(scaled, budget)
    assert scaled["trainer"]["check_val_every_n_epoch"] == every


def test_the_end_of_a_contrast_is_scaled():
    scaled = {"trainer": {"max_epochs": 100}, "model": {"class_path": "FedProc", "init_args": {"T_0": 50}}}
    assert "T_0 5 in place of 50" in scale_rounds(scaled, 0.1)
    assert scaled["model"]["init_args"]["T_0"] == 5


def test_a_contrast_that_ends_with_the_run_does_so_still():
    scaled = {"trainer": {"max_epochs": 100}, "model": {"class_path": "FedProc", "init_args": {"T_0": None}}}
    assert "T_0" not in scale_rounds(scaled, 0.1)


@pytest.mark.parametrize(("budget", "rounds", "warmup"), [(0.1, 11, 1), (0.5, 55, 5), (0.01, 1, 0)])
def test_a_warm_up_is_scaled_and_a_round_comes_after_it(budget, rounds, warmup):
    scaled = {"trainer": {"max_epochs": 110}, "model": {"class_path": "CDFDM", "init_args": {"warmup_rounds": 10}}}
    notice = scale_rounds(scaled, budget)
    assert (scaled["trainer"]["max_epochs"], scaled["model"]["init_args"]["warmup_rounds"]) == (rounds, warmup)
    assert f"warm-up of {warmup} in place of 10" in notice


@pytest.mark.parametrize("budget", [0.0, -0.5, 1.5, float("nan")])
def test_a_budget_that_is_no_fraction(budget):
    with pytest.raises(ConfigurationError, match=r"must lie in \(0, 1\]: 0.05 runs a twentieth"):
        scale_rounds(config(), budget)
