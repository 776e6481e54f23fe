import time

import pytest
from matplotlib.image import imread

from flightning.report import analyse, report, run
from tests.report.synthetic import png, write_grid, write_run

FILES = ["report.html", "report.md", "report.tex", "report.csv", "runs.csv"]
PICTURES = ["partition.png", "partition.pdf"]
FIGURES = [f"accuracy_over_{axis}.{suffix}" for axis in ("rounds", "bytes", "seconds") for suffix in ("png", "pdf")]


def test_command_prints_the_tables_and_writes_every_file(tmp_path, capsys):
    write_grid(tmp_path / "runs", methods=("FedAvg", "FedProx"), seeds=2, rounds=5)
    assert run([str(tmp_path / "runs"), "--target", "0.5", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "| best accuracy (%) |" in printed
    assert "Target: accuracy 50 %" in printed
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(FILES + FIGURES + PICTURES)


def test_command_says_what_is_wrong_and_returns_2(tmp_path, capsys):
    assert run([str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("flightning report: no run in")


def test_folder_that_cannot_be_written_is_named_in_one_line(tmp_path, capsys):
    write_run(tmp_path / "runs" / "a")
    (tmp_path / "file").touch()
    assert run([str(tmp_path / "runs"), "--out", str(tmp_path / "file")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"flightning report: the folder of the report `{tmp_path / 'file'}` cannot be written (")
    assert said.endswith("choose another with `--out`.\n")
    assert said.count("\n") == 1


def test_options_reach_the_report(tmp_path, capsys):
    for data in ("MNIST", "CIFAR10"):
        write_run(tmp_path / data, "SOLO", data=data)
    out = ["--out", str(tmp_path / "out")]
    assert run([str(tmp_path), *out]) == 2
    assert run([str(tmp_path), "--mixed", "--baseline", "solo", "--target", "baseline-final", "--last", "2", *out]) == 0
    printed = capsys.readouterr().out
    assert "final accuracy of SOLO" in printed
    assert "mean of the last 2 evaluated rounds" in printed


def test_figures_are_real_and_reproducible(tmp_path):
    write_grid(tmp_path / "runs", methods=("FedAvg", "FedProx"), seeds=2, rounds=5)
    for name in ("one", "two"):
        report([tmp_path / "runs"], out=tmp_path / name)
    assert (tmp_path / "one" / "accuracy_over_rounds.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "one" / "accuracy_over_rounds.pdf").read_bytes().startswith(b"%PDF")
    for name in FILES + FIGURES + PICTURES:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


def test_axis_that_nobody_logged_is_left_out(tmp_path):
    empty = {"round/bytes_up": [""] * 3, "round/bytes_down": [""] * 3}
    write_run(tmp_path / "a", columns=empty)
    made = report([tmp_path], out=tmp_path / "out")
    names = [p.name for p in made.files]
    assert "accuracy_over_seconds.png" in names
    assert "accuracy_over_bytes.png" not in names
    assert [c.quantity for c in made.tables[1].columns] == ["rounds_to_target", "seconds_to_target"]


def test_notice_stands_on_top_of_every_text(tmp_path):
    notice = "Rounds scaled down to 20 % of the paper's protocol."
    write_run(tmp_path / "a", notice=notice)
    write_run(tmp_path / "b", seed=1, notice=notice)
    made = report([tmp_path], out=tmp_path / "out")
    assert made.notices == [notice]
    assert (tmp_path / "out" / "report.md").read_text().splitlines()[2] == f"> **{notice}**"
    assert (tmp_path / "out" / "report.tex").read_text().startswith(r"\noindent\textbf{Rounds scaled down to 20 ")
    assert (tmp_path / "out" / "report.html").read_text().index("Rounds scaled down") < 12000


def test_notice_stands_in_the_tables_for_programs(tmp_path):
    write_run(tmp_path / "a", notice="Budget 0.1.")
    report([tmp_path], out=tmp_path / "out")
    for name in ("report.csv", "runs.csv"):
        head, *lines = (tmp_path / "out" / name).read_text().splitlines()
        assert head.endswith(",notice")
        assert all(line.endswith(",Budget 0.1.") for line in lines)


def test_notices_name_the_methods_that_they_concern(tmp_path):
    write_run(tmp_path / "a", "FedAvg", notice="6 rounds in place of 120.")
    write_run(tmp_path / "b", "FedProx", notice="6 rounds in place of 120.")
    write_run(tmp_path / "c", "SOLO", notice="5 rounds in place of 100.")
    assert analyse([tmp_path]).notices == [
        "FedAvg, FedProx: 6 rounds in place of 120.",
        "SOLO: 5 rounds in place of 100.",
    ]


def test_notices_name_the_settings_that_they_concern(tmp_path):
    for data, notice in (("MNIST", "3 of 60."), ("CIFAR10", "10 of 200.")):
        for model in ("FedAvg", "FedProx"):
            write_run(tmp_path / data / model, model, data=data, notice=notice)
    made = analyse([tmp_path], mixed=True)
    assert sorted(made.notices) == ["CIFAR10: 10 of 200.", "MNIST: 3 of 60."]


def test_a_notice_of_a_method_on_one_setting_names_both(tmp_path):
    for data in ("MNIST", "CIFAR10"):
        for model in ("FedAvg", "FedProx"):
            notice = "scaled" if (data, model) == ("MNIST", "FedProx") else ""
            write_run(tmp_path / data / model, model, data=data, notice=notice)
    assert analyse([tmp_path], mixed=True).notices == ["FedProx on MNIST: scaled"]


def test_a_report_may_lie_in_the_folder_of_its_run(tmp_path):
    folder = write_run(tmp_path / "a")
    before = (folder / "partition.png").read_bytes()
    made = report([folder], out=folder)
    assert folder / "partition.pdf" in made.files
    assert (folder / "partition.png").read_bytes() == before


def test_notice_makes_a_figure_higher(tmp_path):
    for name, notice in (("plain", ""), ("scaled", "Budget 0.1: 3 rounds in place of 30.")):
        write_run(tmp_path / name / "a", notice=notice)
        report([tmp_path / name], out=tmp_path / name / "out")
    plain, scaled = (imread(tmp_path / n / "out" / "accuracy_over_rounds.png").shape for n in ("plain", "scaled"))
    assert scaled[0] > plain[0]


def test_partition_of_every_setting_is_put_beside_the_report(tmp_path):
    for data in ("MNIST", "CIFAR10"):
        write_run(tmp_path / data, data=data)
    report([tmp_path], out=tmp_path / "out", mixed=True)
    assert (tmp_path / "out" / "partition_mnist.png").read_bytes() == (
        tmp_path / "MNIST" / "partition.png"
    ).read_bytes()
    assert (tmp_path / "out" / "partition_cifar10.pdf").read_bytes().startswith(b"%PDF")


def test_partition_picture_that_was_cut_is_left_out(tmp_path):
    folder = write_run(tmp_path / "a")
    (folder / "partition.png").write_bytes(png()[:40])
    assert not any(f.name.startswith("partition") for f in report([tmp_path], out=tmp_path / "out").files)


def test_sixty_runs_of_two_hundred_rounds_stay_within_time_and_size(tmp_path):
    methods = ["FedAvg", *(f"Method{i}" for i in range(19))]
    write_grid(tmp_path / "runs", methods=methods, seeds=3, rounds=200)
    for folder in (tmp_path / "runs").iterdir():
        (folder / "partition.png").write_bytes(png((1200, 800)))
    start = time.process_time()  # not the wall clock: the machine may be busy with something else
    report([tmp_path / "runs"], out=tmp_path / "out")
    assert time.process_time() - start < 10
    assert (tmp_path / "out" / "report.html").stat().st_size < 3_000_000


@pytest.mark.parametrize("rounds", [1, 2])
def test_shortest_runs_can_be_drawn(tmp_path, rounds):
    write_run(tmp_path / "a", accuracy=(0.5,) * rounds)
    assert report([tmp_path], out=tmp_path / "out").files[0].is_file()
