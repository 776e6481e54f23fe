import json

import pytest

from flightning.report.arrange import arrange
from flightning.report.runs import ReportError, read_runs
from tests.report.synthetic import write_run


def arranged(root, **kwargs):
    return arrange(read_runs([root])[0], **kwargs)


def test_runs_are_sorted_by_method_with_the_baseline_first_and_by_seed(tmp_path):
    for model in ("Aardvark", "FedAvg"):
        for seed in (10, 2):
            write_run(tmp_path / f"{model}-{seed}", model, seed)
    compared = arranged(tmp_path)
    assert (compared.methods, compared.baseline, compared.notes) == (["FedAvg", "Aardvark"], "FedAvg", [])
    assert compared.settings == ["Digits, Dirichlet(alpha=0.5)"]
    assert [r.seed for r in compared.of(compared.settings[0], "FedAvg")] == [2, 10]


@pytest.mark.parametrize(("key", "values"), [("data", ("MNIST", "CIFAR10")), ("partition", ("IID", "Shards(k=2)"))])
def test_mixed_data_or_partitions_are_refused_unless_asked(tmp_path, key, values):
    for value in values:
        write_run(tmp_path / value, **{key: value})
    with pytest.raises(ReportError, match=r"2 different settings \(.*\), and one table compares .*; .* pass `--mixed`"):
        arranged(tmp_path)
    compared = arranged(tmp_path, mixed=True)
    assert sorted(compared.settings) == sorted(values)
    assert compared.common == ("Dirichlet(alpha=0.5)" if key == "data" else "Digits")


def test_number_of_clients_makes_a_setting_where_it_differs(tmp_path):
    write_run(tmp_path / "a", clients=50)
    write_run(tmp_path / "b", clients=100)
    compared = arranged(tmp_path, mixed=True)
    assert (compared.settings, compared.methods) == (["50 clients", "100 clients"], ["FedAvg"])


def test_other_partition_under_the_same_name_is_refused_unless_asked(tmp_path):
    write_run(tmp_path / "a", "FedAvg", 0, partition_hash="aaaa")
    write_run(tmp_path / "b", "FedProx", 0, partition_hash="bbbb")
    with pytest.raises(
        ReportError, match=r"`FedAvg` and `FedProx` with seed 0 .* \(`partition_hash` aaaa and bbbb\), .*--mixed"
    ):
        arranged(tmp_path)
    compared = arranged(tmp_path, mixed=True)
    assert compared.unpaired == {(compared.settings[0], 0)}
    assert "do not share one partition: paired tests leave them out" in compared.notes[0]


def test_last_round_without_evaluation_is_noted(tmp_path):
    write_run(tmp_path / "a", accuracy=(0.5, 0.7, ""))
    assert arranged(tmp_path).notes == [
        "`FedAvg` was last evaluated in round 2 of 3: its final accuracy is of that round."
    ]


def test_same_method_and_seed_twice_is_refused(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b")
    with pytest.raises(ReportError, match=r"`FedAvg` with seed 0 .* was found twice, in `.*a` and `.*b`, .*leave one"):
        arranged(tmp_path)


def test_methods_that_differ_in_callbacks_have_the_labels_of_their_comparison(tmp_path):
    for label in ("FedAvg", "FedAvg + CCVR"):
        folder = write_run(tmp_path / label)
        (folder / "cell.json").write_text(json.dumps({"label": label}))
    compared = arranged(tmp_path)
    assert (compared.methods, compared.baseline) == (["FedAvg", "FedAvg + CCVR"], "FedAvg")


def write_cell(folder, **record):
    (folder / "cell.json").write_text(json.dumps(record))


def test_methods_have_the_names_that_their_grid_gives_to_them(tmp_path):
    for i, name in enumerate(("FedCD-hpc", "FedCD/kd", "FedCD")):
        folder = write_run(tmp_path / str(i), "FedCD", arguments={"a": i, "b": i, "c": i, "d": i})
        write_cell(folder, label=name, name=name)
    compared = arranged(tmp_path, baseline="FedCD")
    assert compared.methods == ["FedCD", "FedCD-hpc", "FedCD/kd"]
    assert compared.notes == []


def test_a_name_that_two_grids_give_to_different_methods_is_not_used(tmp_path):
    for i, model in enumerate(("FedAvg", "FedProx")):
        write_cell(write_run(tmp_path / str(i), model), label="mine", name="mine")
    assert arranged(tmp_path).methods == ["FedAvg", "FedProx"]


@pytest.mark.parametrize("baseline", ["fedprox (mu=1.0)", "FedProx(mu=1.0)", "FedProx(mu=1)"])
def test_a_baseline_may_be_named_by_report_or_comparison(tmp_path, baseline):
    for mu, label in ((0.1, "FedProx(mu=0.1)"), (1.0, "FedProx(mu=1)")):
        write_cell(write_run(tmp_path / label, "FedProx", arguments={"mu": mu}), label=label)
    compared = arranged(tmp_path, baseline=baseline)
    assert compared.baseline == "FedProx (mu=1.0)"


def test_data_with_other_arguments_are_another_setting(tmp_path):
    for split in ("letters", "digits"):
        write_cell(write_run(tmp_path / split, data="EMNIST"), data=f"EMNIST(split={split})")
    compared = arranged(tmp_path, mixed=True)
    assert sorted(compared.settings) == ["EMNIST(split=digits)", "EMNIST(split=letters)"]


def test_same_method_and_seed_with_other_arguments_gets_their_names(tmp_path):
    for mu in (0.1, 1.0):
        write_run(tmp_path / f"mu{mu}", "FedProx", 0, arguments={"mu": mu})
    write_run(tmp_path / "avg")
    assert arranged(tmp_path).methods == ["FedAvg", "FedProx (mu=0.1)", "FedProx (mu=1.0)"]


def test_folders_and_seeds_in_the_configuration_make_no_variant(tmp_path):
    for seed in range(3):
        write_run(tmp_path / str(seed), seed=seed)
    assert arranged(tmp_path).methods == ["FedAvg"]


def test_many_differing_arguments_become_numbered_variants(tmp_path):
    for i in range(2):
        write_run(tmp_path / str(i), arguments={"a": i, "b": i, "c": i, "d": i})
    compared = arranged(tmp_path)
    assert compared.methods == ["FedAvg (variant 1)", "FedAvg (variant 2)"]
    assert "`FedAvg` was run with 2 configurations that differ in 4 arguments" in compared.notes[0]


def test_choice_between_variants_of_the_baseline_is_said(tmp_path):
    for lr in (0.1, 0.2):
        write_run(tmp_path / str(lr), arguments={"lr": lr})
    compared = arranged(tmp_path)
    assert compared.baseline == "FedAvg (lr=0.1)"
    assert compared.notes == [
        "The baseline is `FedAvg (lr=0.1)`; to take `FedAvg (lr=0.2)` instead, give the full name to `--baseline`."
    ]
    assert arranged(tmp_path, baseline="FedAvg (lr=0.2)").methods == ["FedAvg (lr=0.2)", "FedAvg (lr=0.1)"]


def test_missing_default_baseline_is_said(tmp_path):
    write_run(tmp_path / "a", "SOLO")
    compared = arranged(tmp_path)
    assert compared.baseline is None
    assert compared.notes == ["No run of `FedAvg`: there is no baseline; name another method with `--baseline`."]


def test_missing_named_baseline_is_refused(tmp_path):
    write_run(tmp_path / "a", "FedProx")
    with pytest.raises(
        ReportError, match=r"`baseline` is `FedPrix`, but no run has this method; Did you mean `FedProx`\?"
    ):
        arranged(tmp_path, baseline="FedPrix")


def test_missing_seed_is_said(tmp_path):
    for seed in range(3):
        write_run(tmp_path / f"a{seed}", "FedAvg", seed)
    write_run(tmp_path / "b0", "FedProx", 0)
    assert arranged(tmp_path).notes == [
        "`FedProx` lacks seeds 1, 2: its mean is over 1 of 3 seeds, and paired tests use the seeds that both methods "
        "have."
    ]


def test_run_that_stopped_early_is_said(tmp_path):
    write_run(tmp_path / "a", seed=0)
    write_run(tmp_path / "b", seed=1, accuracy=(0.5, 0.6))
    write_run(tmp_path / "c", seed=2, finished=False)
    notes = arranged(tmp_path).notes
    # the run of two rounds also says `max_epochs: 2`, so it is another variant and stands alone
    assert "`FedAvg (max_epochs=3)`, seed 2, stopped after 3 rounds." in notes
    assert any("lacks" in note for note in notes)
