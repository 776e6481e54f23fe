"""The tables of the papers from runs that are made to have the papers' numbers."""

import math

import pytest

from flightning.report import ReportError, analyse, report
from flightning.report.quantities import MINUS, NOTHING, TIMES
from flightning.report.target import parse_target
from tests.report.synthetic import BYTES, write_run


def table(made, key):
    return next(t for t in made.tables if t.key == key)


def texts(made, key):
    return {name: [c.text for c in cells] for name, cells in table(made, key).rows}


def crossing(rounds, at, target, top):
    """Accuracies that first exceed the target at a round."""
    return [target + top if r >= at else target - 0.1 for r in range(1, rounds + 1)]


@pytest.fixture
def fedrl(tmp_path):
    """Paper S1 on MNIST: FedAvg ends at 97.19 % after 120 rounds; FedProx needs 86, FedRL 51, SOLO never gets there."""
    final = 0.9719
    curves = {
        "FedAvg": [final - 0.1] * 119 + [final],
        "FedProx": crossing(120, 86, final, 0.0009),
        "FedRL": crossing(120, 51, final, 0.0053),
        "SOLO": [0.8176] * 120,
    }
    seconds = {"FedAvg": 40.64, "FedProx": 53.17, "FedRL": 47.84, "SOLO": 10.0}
    for model, accuracy in curves.items():
        write_run(tmp_path / "runs" / model, model, 0, accuracy, seconds=seconds[model])
    return tmp_path


def test_s1_table_1_best_accuracy(fedrl):
    best = {name: cells[0] for name, cells in texts(analyse([fedrl / "runs"]), "accuracy").items()}
    assert best == {"FedAvg": "97.19", "FedProx": "97.28", "FedRL": "97.72", "SOLO": "81.76"}


def test_s1_table_2_rounds_and_speed_up(fedrl):
    made = analyse([fedrl / "runs"])
    rounds = {name: cells[0] for name, cells in texts(made, "target").items()}
    assert rounds == {
        "FedAvg": f"120 (1.00{TIMES})",
        "FedProx": f"86 (1.40{TIMES})",
        "FedRL": f"51 (2.35{TIMES})",
        "SOLO": "/",
    }
    bold = [name for name, cells in table(made, "target").rows if cells[0].bold]
    assert bold == ["FedRL"]


def test_s1_table_3_seconds_per_round(fedrl):
    made = analyse([fedrl / "runs"])
    column = [c.quantity for c in table(made, "cost").columns].index("seconds_per_round")
    assert [cells[column].text for _, cells in table(made, "cost").rows] == ["40.64", "53.17", "47.84", "10"]


def test_s1_table_3_seconds_of_local_training(tmp_path):
    write_run(tmp_path / "a", seconds=50.0, columns={"round/seconds_training": (40.0, 41.0, 42.0)})
    made = analyse([tmp_path])
    column = [c.quantity for c in table(made, "cost").columns].index("training_seconds_per_round")
    assert table(made, "cost").rows[0][1][column].text == "41"


def test_s4_table_2_bytes_to_target_and_parameters_per_round(fedrl):
    made = analyse([fedrl / "runs"])
    # 10 clients, 40 kB each way: 0.8 MB or 0.2 million 32-bit numbers a round, 120 rounds for FedAvg and 51 for FedRL
    sent = dict(table(made, "target").rows)
    assert [sent["FedAvg"][1].mean, sent["FedRL"][1].mean] == [120 * 20 * BYTES, 51 * 20 * BYTES]
    assert [sent["FedAvg"][1].text, sent["SOLO"][1].text] == [f"96 (1.00{TIMES})", "/"]
    assert texts(made, "cost")["FedAvg"][:2] == ["0.2", "800"]


def test_s4_table_2_multiples_relative_to_another_method_than_the_one_that_sets_the_target(fedrl):
    # FedAvg still sets the target; its 120 and FedProx's 86 rounds of equal bytes are multiples of FedRL's 51
    cells = dict(table(analyse([fedrl / "runs"], baseline="FedRL"), "target").rows)
    assert [cells[m][0].text for m in ("FedAvg", "FedRL")] == [f"120 (0.42{TIMES})", f"51 (1.00{TIMES})"]
    assert [cells[m][1].text for m in ("FedAvg", "FedProx")] == [f"96 (2.35{TIMES})", f"68.8 (1.69{TIMES})"]


def test_fedavg_counts_with_all_its_rounds_where_it_sets_the_target(tmp_path):
    write_run(tmp_path / "a", "FedAvg", 0, (0.5, 0.8, 0.7, 0.8))
    write_run(tmp_path / "b", "FedRL", 0, (0.5, 0.8, 0.7, 0.8))
    assert [cells[:2] for cells in texts(analyse([tmp_path]), "target").values()] == [
        [f"4 (1.00{TIMES})", f"3.2 (1.00{TIMES})"],
        [f"2 (2.00{TIMES})", f"1.6 (0.50{TIMES})"],
    ]


def test_target_of_the_baseline_is_asked_for_by_name(tmp_path):
    write_run(tmp_path / "a", "FedAvg", 0, (0.5, 0.6, 0.8))
    write_run(tmp_path / "b", "SOLO", 0, (0.5, 0.6, 0.6))
    made = analyse([tmp_path], target="baseline-final", baseline="SOLO")
    assert {m: cells[0] for m, cells in texts(made, "target").items()} == {
        "SOLO": f"3 (1.00{TIMES})",
        "FedAvg": f"2 (1.50{TIMES})",
    }


def test_missing_fedavg_leaves_no_target_beside_another_baseline(tmp_path):
    write_run(tmp_path / "a", "SOLO")
    made = analyse([tmp_path], baseline="SOLO")
    assert [t.key for t in made.tables] == ["accuracy", "cost"]
    assert table(made, "accuracy").notes[-1] == (
        "No run of `FedAvg`: there is no target; give an accuracy or `baseline-final` to `--target`."
    )


def test_s4_table_1_mean_and_deviation_over_seeds(tmp_path):
    # 66.31 +- 0.59: three seeds at mean and mean +- d have sample deviation d
    for seed, shift in enumerate((-0.0059, 0.0, 0.0059)):
        write_run(tmp_path / f"a{seed}", "FedAvg", seed, (0.5, 0.6631 + shift))
        write_run(tmp_path / f"b{seed}", "FedCD", seed, (0.5, 0.7310 + shift))
    made = analyse([tmp_path])
    assert texts(made, "accuracy") == {"FedAvg": ["66.31 ± 0.59"] * 2, "FedCD": ["73.10 ± 0.59"] * 2}
    assert [cells[0].bold for _, cells in table(made, "accuracy").rows] == [False, True]
    # the differences are 6.79 for every seed, so the interval has no width
    assert texts(made, "pairs") == {f"FedCD {MINUS} FedAvg": ["+6.79 [+6.79, +6.79] (n=3)"] * 2}


def test_s5_table_1_last_five_rounds_of_one_run(tmp_path):
    # last five: 0.96, 0.97, 0.98, 0.97, 0.97: mean 0.97, deviation sqrt((1 + 0 + 1) e-4 / 4) = 0.7071 %
    write_run(tmp_path / "a", accuracy=(0.2, 0.96, 0.97, 0.98, 0.97, 0.97))
    made = analyse([tmp_path], last=5)
    assert texts(made, "accuracy") == {"FedAvg": ["98.00", "97.00 ± 0.71"]}
    assert "with one seed the deviation is over these rounds" in table(made, "accuracy").notes[1]


def test_deviations_over_rounds_do_not_stand_beside_those_over_seeds(tmp_path):
    # FedAvg: 97 and 99 are over seeds 98 +- 1.4142; FedProx has one seed, whose rounds deviate by 0.7071
    for seed, final in enumerate((0.97, 0.99)):
        write_run(tmp_path / f"a{seed}", "FedAvg", seed, (0.2, final, final))
    write_run(tmp_path / "b", "FedProx", 0, (0.2, 0.96, 0.97))
    made = analyse([tmp_path], last=2)
    assert {name: cells[1] for name, cells in texts(made, "accuracy").items()} == {
        "FedAvg": "98.00 ± 1.41",
        "FedProx": "96.50",
    }


def test_difference_of_two_pairs_is_never_bold(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"a{seed}", "FedAvg", seed, (0.5, 0.7))
        write_run(tmp_path / f"b{seed}", "FedRL", seed, (0.5, 0.8))
    assert not any(c.bold for _, cells in table(analyse([tmp_path]), "pairs").rows for c in cells)


def test_last_is_capped_by_the_evaluated_rounds_and_said(tmp_path):
    write_run(tmp_path / "a", accuracy=(0.5, 0.7, 0.9))
    made = analyse([tmp_path], last=5)
    assert table(made, "accuracy").columns[1].title == "accuracy of the last 3 rounds (%)"
    assert "No run was evaluated 5 times: the final accuracy is of 3 instead." in table(made, "accuracy").notes


def test_runs_with_fewer_evaluations_than_the_last_are_counted(tmp_path):
    write_run(tmp_path / "a", "FedAvg", accuracy=(0.5, 0.7, 0.9))
    write_run(tmp_path / "b", "SOLO", accuracy=(0.5, "", 0.9))
    notes = table(analyse([tmp_path], last=3), "accuracy").notes
    assert any(n.startswith("1 of 2 runs were evaluated less than 3 times") for n in notes)


def test_last_below_one_is_refused(tmp_path):
    with pytest.raises(
        ReportError, match="`last` is 0, but it counts the rounds that the final accuracy is the mean of; use 1 or more"
    ):
        analyse([tmp_path], last=0)


def test_mixed_settings_become_columns(tmp_path):
    for data, level in (("MNIST", 0.97), ("CIFAR10", 0.62)):
        write_run(tmp_path / data / "a", "FedAvg", 0, (0.1, level), data=data)
        write_run(tmp_path / data / "b", "FedRL", 0, (level + 0.01, level), data=data)
    made = analyse([tmp_path / "MNIST", tmp_path / "CIFAR10"], mixed=True)
    assert [c.title for c in table(made, "accuracy-best_accuracy").columns] == ["MNIST", "CIFAR10"]
    assert table(made, "accuracy-best_accuracy").title == "Best accuracy (%)"
    assert texts(made, "accuracy-best_accuracy") == {"FedAvg": ["97.00", "62.00"], "FedRL": ["98.00", "63.00"]}
    # each setting has the target of its own baseline
    assert texts(made, "target-rounds_to_target")["FedRL"] == [f"1 (2.00{TIMES})"] * 2
    assert texts(made, "pairs-best") == {f"FedRL {MINUS} FedAvg": ["+1.00 (n=1)"] * 2}


def test_method_that_was_not_run_in_a_setting_is_blank_there(tmp_path):
    for data in ("MNIST", "CIFAR10"):
        write_run(tmp_path / data, "FedAvg", 0, data=data)
    write_run(tmp_path / "x", "FedRL", 0, data="MNIST")
    made = analyse([tmp_path], mixed=True)
    assert [c.title for c in table(made, "accuracy-best_accuracy").columns] == ["CIFAR10", "MNIST"]
    assert texts(made, "accuracy-best_accuracy")["FedRL"][0] == NOTHING
    assert texts(made, "pairs-best")[f"FedRL {MINUS} FedAvg"][0] == NOTHING


def test_fixed_target_compares_with_the_rounds_of_the_baseline(tmp_path):
    write_run(tmp_path / "a", "FedAvg", 0, (0.5, 0.7, 0.8, 0.9))
    write_run(tmp_path / "b", "FedRL", 0, (0.7, 0.8, 0.9, 0.9))
    made = analyse([tmp_path], target="0.8")
    assert [cells[0] for cells in texts(made, "target").values()] == [f"3 (1.00{TIMES})", f"2 (1.50{TIMES})"]


def test_target_that_some_seeds_reach_says_how_many_and_claims_no_speed_up(tmp_path):
    for seed, top in enumerate((0.8, 0.9, 0.9)):
        write_run(tmp_path / f"a{seed}", "FedAvg", seed, (0.5, 0.85, 0.9))
        write_run(tmp_path / f"b{seed}", "FedRL", seed, (0.5, 0.6, top))
    made = analyse([tmp_path], target=0.9)
    assert texts(made, "target")["FedRL"][0] == "3 [2 of 3]"
    cell = dict(table(made, "target").rows)["FedRL"][0]
    assert math.isnan(cell.ratio)
    assert not cell.bold


def test_target_that_no_run_reaches_is_a_slash_with_a_note(tmp_path):
    write_run(tmp_path / "a")
    made = analyse([tmp_path], target=0.99)
    assert texts(made, "target") == {"FedAvg": ["/", "/", "/"]}
    assert table(made, "target").columns[1].title == "sent until target"  # of no bytes there is no unit
    assert table(made, "target").notes[-1] == (
        "No run on Digits, Dirichlet(alpha=0.5) reaches the target 99.00 %: the best is 80.00 % (`FedAvg`, seed 0); "
        "give a lower `--target`."
    )


def test_target_of_a_seed_is_the_baseline_with_this_seed(tmp_path):
    for seed, level in ((0, 0.6), (1, 0.8)):
        write_run(tmp_path / f"a{seed}", "FedAvg", seed, (0.5, level))
        write_run(tmp_path / f"b{seed}", "FedRL", seed, (level, level))
    made = analyse([tmp_path])
    assert texts(made, "target")["FedRL"][0] == f"1 (2.00{TIMES})"


def test_without_a_baseline_there_is_no_target_table(tmp_path):
    write_run(tmp_path / "a", "SOLO")
    made = analyse([tmp_path])
    assert [t.key for t in made.tables] == ["accuracy", "cost"]
    assert "there is no baseline" in table(made, "accuracy").notes[-1]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("best", "`target` is `best`, but it must be an accuracy such as 0.9, `fedavg-final` or `baseline-final`"),
        ("90", r"`target` is 90, but accuracies are fractions in \(0, 1\]; write 0.9 for 90 %"),
        (0.0, r"`target` is 0.0, but accuracies are fractions"),
        ("nan", r"`target` is nan, but accuracies are fractions"),
    ],
)
def test_wrong_target_is_refused(target, message):
    with pytest.raises(ReportError, match=message):
        parse_target(target)


def test_fairness_of_the_last_round_that_measured_it(tmp_path):
    columns = {
        "clients/accuracy_mean": (0.7, 0.8, ""),
        "clients/accuracy_std": (0.2, 0.1, ""),
        "clients/accuracy_worst10": (0.4, 0.5, ""),
        "clients/accuracy_best10": (0.9, 0.95, ""),
        "clients/jain": (0.9, 0.98, ""),
    }
    write_run(tmp_path / "a", columns=columns)
    made = analyse([tmp_path])
    assert texts(made, "fairness") == {"FedAvg": ["80.00", "10.00", "50.00", "95.00", "0.9800"]}


def test_deviation_of_own_models_on_the_whole_test_set_has_its_own_column(tmp_path):
    write_run(tmp_path / "a", "SOLO", columns={"val/accuracy_std": (0.1, 0.1, 0.05)})
    write_run(tmp_path / "b", "FedAvg", columns={"clients/accuracy_std": ("", "", 0.2)})
    made = analyse([tmp_path])
    assert [c.title for c in table(made, "fairness").columns] == [
        "deviation over clients (%)",
        "deviation over own models (%)",
    ]
    assert texts(made, "fairness") == {"FedAvg": ["20.00", NOTHING], "SOLO": [NOTHING, "5.00"]}
    assert "each on the whole test set" in table(made, "fairness").notes[0]


def test_seeds_on_different_partitions_are_not_paired(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"a{seed}", "FedAvg", seed, (0.5, 0.8))
        write_run(tmp_path / f"b{seed}", "FedRL", seed, (0.5, 0.9), partition_hash="hash0")
    made = analyse([tmp_path], mixed=True)
    assert texts(made, "pairs") == {f"FedRL {MINUS} FedAvg": ["+10.00 (n=1)"] * 2}


def test_bytes_beside_the_weights_are_shown_where_there_are_any(tmp_path):
    write_run(tmp_path / "a", "FedAvg")
    write_run(tmp_path / "b", "SCAFFOLD", extra=BYTES)
    made = analyse([tmp_path])
    column = [c.quantity for c in table(made, "cost").columns].index("extra_bytes_per_round")
    assert [cells[column].text for _, cells in table(made, "cost").rows] == ["0", "400"]


def test_many_methods_keep_the_pairs_with_the_baseline_and_leave_the_rest_to_the_csv(tmp_path):
    for i in range(8):
        write_run(tmp_path / str(i), f"M{i}" if i else "FedAvg")
    made = report([tmp_path], out=tmp_path / "out")
    assert len(table(made, "pairs").rows) == 7
    assert table(made, "pairs").notes[-1] == "The other 21 pairs are in `report.csv`."
    lines = (tmp_path / "out" / "report.csv").read_text().splitlines()
    assert sum(line.startswith("pairs,") for line in lines) == 2 * 28
