"""What cells leave on disk and how far they are."""

import json

import pytest
from rich.console import Console

from flightning.compare.cells import Cell
from flightning.compare.folders import find_state, prepare
from flightning.compare.runner import Runner, reason
from flightning.compare.status import Status, remaining
from flightning.compare.view import Lines, LiveTable, overview
from flightning.errors import ConfigurationError


def cell_in(folder, model="FedAvg", seed=0, **settings):
    return Cell(model, "", seed, ("--model=FedAvg",), {"model": model, "seed": str(seed), **settings}, folder)


def write_summary(cell, **values):
    summary = {"rounds": 4, "max_rounds": 10, "seconds": 8.0, "final_accuracy": 0.5, "finished": False, **values}
    cell.folder.mkdir(parents=True, exist_ok=True)
    (cell.folder / "summary.json").write_text(json.dumps(summary))


def test_a_new_folder_is_new(tmp_path):
    assert find_state(cell_in(tmp_path / "a")) == "new"


def test_a_run_without_checkpoint_starts_anew(tmp_path):
    cell = cell_in(tmp_path / "a")
    prepare(cell, "new", 1)
    (cell.folder / "metrics.csv").write_text("round\n1\n")
    write_summary(cell)
    assert find_state(cell) == "new"
    prepare(cell, "new", 1)
    assert not (cell.folder / "metrics.csv").exists()


def test_a_run_with_checkpoint_goes_on_with_its_threads_and_id(tmp_path):
    cell = cell_in(tmp_path / "a")
    first = prepare(cell, "new", 1)
    (cell.folder / "checkpoints").mkdir()
    (cell.folder / "checkpoints" / "last.ckpt").touch()
    (cell.folder / "metrics.csv").write_text("round\n1\n")
    assert find_state(cell) == "interrupted"
    assert prepare(cell, "interrupted", 2) == first
    assert (cell.folder / "metrics.csv").exists()


def test_a_run_that_starts_anew_has_the_threads_of_now_and_its_id(tmp_path):
    first = prepare(cell_in(tmp_path / "a"), "new", 1)
    again = prepare(cell_in(tmp_path / "a"), "new", 2)
    assert (again.threads, again.wandb_id) == (2, first.wandb_id)
    assert prepare(cell_in(tmp_path / "a"), "interrupted", 4) == again


def test_a_finished_run_is_finished(tmp_path):
    cell = cell_in(tmp_path / "a")
    prepare(cell, "new", 1)
    write_summary(cell, finished=True)
    assert find_state(cell) == "finished"


def test_a_folder_with_other_settings_is_refused(tmp_path):
    prepare(cell_in(tmp_path / "a", **{"--trainer.max_epochs": "2"}), "new", 1)
    with pytest.raises(ConfigurationError, match=r"other settings \(`--trainer.max_epochs`: `2`, now `4`\): choose"):
        find_state(cell_in(tmp_path / "a", **{"--trainer.max_epochs": "4"}))


def test_a_folder_from_before_numbers_were_written_in_one_way_goes_on(tmp_path):
    folder = tmp_path / "a"
    folder.mkdir()
    settings = {"model": "FedAvg", "seed": "0", "--budget": "1.0", "data.cache_dir": "/cache"}
    (folder / "cell.json").write_text(json.dumps({"settings": settings, "threads": 1, "wandb_id": "x"}))
    assert find_state(cell_in(folder, **{"--budget": "1"})) == "new"


def test_a_folder_with_a_foreign_run_is_refused(tmp_path):
    (tmp_path / "metrics.csv").touch()
    with pytest.raises(ConfigurationError, match="a run that is not of this comparison"):
        find_state(cell_in(tmp_path))


def test_finished_cells_are_skipped(tmp_path):
    cells = [cell_in(tmp_path / "a"), cell_in(tmp_path / "b", seed=1)]
    prepare(cells[0], "new", 1)
    write_summary(cells[0], finished=True)
    states = [(s.state, s.is_old) for s in Runner(cells, 1, "test").statuses]
    assert states == [("finished", True), ("waiting", False)]


def test_wandb_sorts_cells_by_comparison_setting_and_method(tmp_path, monkeypatch):
    for name in ("WANDB_RUN_GROUP", "WANDB_TAGS"):
        monkeypatch.delenv(name, raising=False)
    cell = Cell("FedProx(mu=0.1, net=MLP)", "Digits", 3, (), {}, tmp_path / "a")
    record = prepare(cell, "new", 1)
    found = Runner([cell], 1, "study").environment(cell, record)
    assert found == {
        "WANDB_RUN_GROUP": "study, Digits",
        "WANDB_JOB_TYPE": "FedProx(mu=0.1, net=MLP)",
        "WANDB_NAME": "FedProx(mu=0.1, net=MLP), Digits, seed 3",
        # W&B splits tags at commas
        "WANDB_TAGS": "compare,study,FedProx(mu=0.1; net=MLP),Digits,seed-3",
        "WANDB_RUN_ID": record.wandb_id,
    }
    monkeypatch.setenv("WANDB_RUN_GROUP", "mine")
    monkeypatch.setenv("WANDB_TAGS", "thesis")
    found = Runner([cell], 1, "study").environment(cell, record)
    assert (found["WANDB_RUN_GROUP"], found["WANDB_TAGS"].split(",")[0]) == ("mine", "thesis")


def test_progress_is_read_from_the_summary(tmp_path):
    status = Status(cell_in(tmp_path / "a"), state="starting")
    assert not status.refresh()
    write_summary(status.cell)
    assert status.refresh()
    assert not status.refresh()
    assert (status.state, status.round, status.max_rounds, status.accuracy) == ("training", 4, 10, 0.5)
    # 8 s for 4 rounds: 6 rounds more take 12 s
    assert status.seconds_left == pytest.approx(12.0, abs=0.5)


def test_time_left_counts_waiting_cells_as_typical_ones(tmp_path):
    done = Status(cell_in(tmp_path / "a"), state="finished", round=10, max_rounds=10, seconds=20.0)
    waiting = Status(cell_in(tmp_path / "b"))
    assert remaining([waiting], 1) is None
    # a typical cell takes 20 s; two of them side by side take 20 s
    assert remaining([done, waiting, Status(cell_in(tmp_path / "c"))], 2) == pytest.approx(20.0)


def test_time_left_is_never_less_than_that_of_the_longest_cell(tmp_path):
    # 10 rounds took 10 s, and 600 are left: three other places cannot help
    running = Status(cell_in(tmp_path / "a"), "training", round=10, max_rounds=610, seconds=10.0)
    assert remaining([running], 4) == pytest.approx(600.0, abs=1.0)


def test_time_left_counts_the_start_and_end_of_cells_that_finished(tmp_path):
    done = Status(cell_in(tmp_path / "a"), state="finished", round=10, max_rounds=10, seconds=20.0, wall_seconds=30.0)
    old = Status(cell_in(tmp_path / "b"), state="finished", is_old=True, round=10, max_rounds=10, seconds=90.0)
    assert remaining([done, old, Status(cell_in(tmp_path / "c"))], 1) == pytest.approx(30.0)


def test_a_cell_that_cannot_be_started_fails_alone(tmp_path):
    (tmp_path / "file").touch()
    cells = [cell_in(tmp_path / "file" / "a"), cell_in(tmp_path / "b", seed=1)]
    runner, started = Runner(cells, 1, "test"), []

    class Finished:
        """A nursery whose runs are over at once."""

        def start(self, module, arguments, output, environment, threads):
            started.append(output.parent)
            write_summary(cells[1], finished=True)
            return self

        def poll(self):
            return 0

        def interrupt(self, grace):
            """Nothing runs."""

    runner.run(Finished(), lambda: None)
    assert [s.state for s in runner.statuses] == ["failed", "finished"]
    assert "Not a directory" in runner.statuses[0].error
    assert started == [tmp_path / "b"]


def statuses(tmp_path):
    return [
        Status(cell_in(tmp_path / "a"), "training", round=4, max_rounds=10, accuracy=0.8125, seconds=8.0),
        Status(cell_in(tmp_path / "b", "FedProx(mu=-1)"), "failed", error="`mu=-1` must be at least 0"),
        Status(cell_in(tmp_path / "c", seed=1)),
        Status(cell_in(tmp_path / "d", seed=2), "finished", is_old=True, round=10, max_rounds=10, seconds=20.0),
    ]


def test_the_live_table_shows_all_cells(tmp_path):
    console = Console(record=True, width=120, height=40, file=(tmp_path / "screen").open("w"))
    console.print(LiveTable(statuses(tmp_path), 1, console).table())
    text = console.export_text()
    for part in ("4/10", "81.25 %", "12 s", "failed", "waiting", "finished before"):
        assert part in text
    assert "1 of 4 finished, 1 failed" in text


def test_the_live_table_shows_what_says_most_where_cells_are_many(tmp_path):
    console = Console(record=True, width=120, height=12, file=(tmp_path / "screen").open("w"))
    many = statuses(tmp_path) + [Status(cell_in(tmp_path / "x", seed=s)) for s in range(10, 40)]
    console.print(LiveTable(many, 1, console).table())
    text = console.export_text()
    assert "28 cells are not shown" in text
    assert "4/10" in text
    assert len(text.splitlines()) < 12


def test_the_live_table_cuts_texts_and_no_numbers_where_it_is_narrow(tmp_path):
    console = Console(record=True, width=70, height=40, file=(tmp_path / "screen").open("w"))
    console.print(LiveTable(statuses(tmp_path), 1, console).table())
    lines = console.export_text().splitlines()
    assert len(lines) == 3 + 4 + 2  # head, a line per cell, end of the table and the overview
    assert max(map(len, lines)) <= 70
    assert "4/10" in lines[3]
    assert "81.25 %" in lines[3]
    assert "│ failed " in lines[4]


def test_the_live_table_fits_a_small_terminal_with_several_settings(tmp_path):
    console = Console(record=True, width=80, height=24, file=(tmp_path / "screen").open("w"))
    many = [
        Status(
            Cell("RFedAvgPlus", f"{data}, Similarity(similarity={s})", 0, (), {}, tmp_path / data / str(s)),
            "training",
            round=100,
            max_rounds=200,
            accuracy=0.8,
            seconds=100.0,
        )
        for data in ("MNIST", "CIFAR10")
        for s in (0.0, 0.1, 1.0)
    ]
    console.print(LiveTable(many, 1, console).table())
    text = console.export_text()
    assert "CIFAR10, 0.1" in text
    assert "…" not in text


def test_lines_tell_what_is_new(tmp_path, capsys):
    shown = statuses(tmp_path)
    shown[0].state = "waiting"
    with Lines(shown, 1) as lines:
        lines.show()
        assert capsys.readouterr().out == "1 of 4 cells are finished already.\n"
        shown[0].state = "starting"
        lines.show()
        lines.show()
        assert capsys.readouterr().out.count("\n") == 1
        shown[0].state = "finished"
        lines.show()
    out = capsys.readouterr().out
    assert out.startswith("FedAvg, seed 0: finished, round 4/10, accuracy 81.25 %\n2 of 4 finished, 1 failed")


def test_overview_without_time_where_nothing_is_known(tmp_path):
    assert overview([Status(cell_in(tmp_path / "a"))], 1) == "0 of 1 finished"


@pytest.mark.parametrize(
    ("printed", "code", "said"),
    [
        ("round 1\nerror: `mu=-1` must be at least 0.\n", 2, "`mu=-1` must be at least 0."),
        ("Traceback\n  File x\nValueError: boom\n\n", 1, "ValueError: boom"),
        ("", 3, "exit code 3"),
        ("round 1\n", -9, r"its process was ended by SIGKILL (out of memory?)"),
    ],
)
def test_the_reason_of_a_failure_is_what_the_run_said(tmp_path, printed, code, said):
    (tmp_path / "output.txt").write_text(printed)
    assert reason(tmp_path / "output.txt", code) == said
