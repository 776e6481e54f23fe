import json
import struct
import zlib

import pytest

from flightning.errors import ConfigurationError
from flightning.report import ReportError, report
from flightning.report.runs import read_run, read_runs
from flightning.report.wandb_log import BLOCK, FIRST, FULL, HEADER, LAST, MIDDLE, records
from tests.report.synthetic import write_run


def framed(payload, kind=FULL):
    return struct.pack("<IHB", zlib.crc32(bytes([kind]) + payload), len(payload), kind) + payload


def messages(rows, config=(), summary=(), name="run", exit_code=0):
    pb = pytest.importorskip("wandb.proto.wandb_internal_pb2", reason="wandb is not installed")
    run = pb.Record()
    run.run.display_name = name
    for key, value in dict(config).items():
        run.run.config.update.add(key=key, value_json=json.dumps(value))
    found = [run]
    for row in rows:
        record = pb.Record()
        for key, value in row.items():
            record.history.item.add(nested_key=[key], value_json=json.dumps(value))
        found.append(record)
    last = pb.Record()
    for key, value in dict(summary).items():
        last.summary.update.add(key=key, value_json=json.dumps(value))
    found.append(last)
    if exit_code is not None:
        end = pb.Record()
        end.exit.exit_code = exit_code
        found.append(end)
    return [r.SerializeToString() for r in found]


def write_log(folder, payloads):
    folder.mkdir(parents=True)
    path = folder / f"run-{folder.name}.wandb"
    path.write_bytes(HEADER + b"".join(map(framed, payloads)))
    return path


ROWS = [
    {"epoch": 0, "trainer/global_step": 9, "val/accuracy": 0.5},
    {"epoch": 0, "trainer/global_step": 9, "round/bytes_up": 10.0, "round/bytes_down": 10.0},
    {"_runtime": 3.0, "system/cpu": 1.0},
    {"epoch": 1, "trainer/global_step": 19, "val/accuracy": 0.6},
]
CONFIG = {
    "model": {"class_path": "flightning.FedProx", "init_args": {"mu": 0.1}},
    "data": {"class_path": "flightning.Digits", "init_args": {}},
    "seed_everything": 7,
}


def test_record_over_several_blocks_is_put_together():
    first = BLOCK - len(HEADER) - 7
    whole = bytes(range(256)) * 300  # 76 800 bytes: more than two blocks
    cuts = [whole[:first], whole[first : first + BLOCK - 7], whole[first + BLOCK - 7 :]]
    content = HEADER + b"".join(framed(part, kind) for part, kind in zip(cuts, (FIRST, MIDDLE, LAST), strict=True))
    assert list(records(content + framed(b"next"))) == [whole, b"next"]


def test_block_tail_too_short_for_a_header_is_padding():
    filler = b"x" * (BLOCK - len(HEADER) - 7 - 3)
    assert list(records(HEADER + framed(filler) + b"\0\0\0" + framed(b"next"))) == [filler, b"next"]


def test_damaged_record_is_counted_and_the_next_is_read():
    bad = bytearray(framed(b"payload"))
    bad[-1] ^= 1
    assert list(records(HEADER + framed(b"a") + bytes(bad) + framed(b"b"))) == [b"a", None, b"b"]


def test_lost_framing_is_found_again_at_the_next_block():
    content = HEADER + framed(b"a") + b"\xff" * (BLOCK - len(HEADER) - 8)
    assert list(records(content + framed(b"b"))) == [b"a", None, b"b"]


def test_rows_are_merged_by_round_and_named_by_the_configuration(tmp_path):
    run = read_run(write_log(tmp_path / "x", messages(ROWS, CONFIG, {"partition": "IID()"})))
    assert (run.model, run.data, run.partition, run.seed) == ("FedProx", "Digits", "IID", 7)
    assert run.rounds.tolist() == [1, 2]
    assert run.logged("val/accuracy").tolist() == [0.5, 0.6]
    assert run.logged("round/bytes_up")[0] == 10.0
    assert (run.config["model.mu"], run.finished, run.broken) == ("0.1", True, 0)


def test_what_is_logged_before_the_first_round_is_no_broken_line(tmp_path):
    rows = [{"round": 0, "partition_table": "x"}, *ROWS]
    run = read_run(write_log(tmp_path / "x", messages(rows, CONFIG)))
    assert (run.broken, run.rounds.tolist()) == (0, [1, 2])


def test_a_run_that_went_on_in_a_second_file_is_one_run(tmp_path):
    # the third round was not in the checkpoint, and is there again
    parts = {1: ({1: 0.5, 2: 0.6, 3: 0.1}, None), 2: ({3: 0.7, 4: 0.8}, 0)}
    for number, (accuracies, code) in parts.items():
        rows = [{"round": r, "val/accuracy": a} for r, a in accuracies.items()]
        path = write_log(tmp_path / f"offline-run-{number}-id", messages(rows, CONFIG, exit_code=code))
        path.rename(path.with_name("run-id.wandb"))
    (run,), notes = read_runs([tmp_path])
    assert (run.rounds.tolist(), run.logged("val/accuracy").tolist()) == ([1, 2, 3, 4], [0.5, 0.6, 0.7, 0.8])
    assert (run.finished, notes) == (True, [])


@pytest.mark.parametrize("content", [b"", b"something else"], ids=["empty", "foreign"])
def test_a_log_that_cannot_be_read_is_left_out_and_said(tmp_path, content):
    pytest.importorskip("wandb", reason="wandb is not installed")
    write_run(tmp_path / "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run-x.wandb").write_bytes(content)
    runs, notes = read_runs([tmp_path])
    assert [r.folder.name for r in runs] == ["good"]
    assert "run-x.wandb` is left out: " in notes[0]
    assert "does not start like a W&B log" in notes[0]


def test_logs_of_wandb_are_left_out_and_said_where_the_package_is_missing(tmp_path, monkeypatch):
    write_run(tmp_path / "good")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run-x.wandb").write_bytes(HEADER)
    monkeypatch.setitem(__import__("sys").modules, "wandb.proto", None)
    runs, notes = read_runs([tmp_path])
    assert [r.folder.name for r in runs] == ["good"]
    assert "needs the package `wandb`" in notes[0]
    with pytest.raises(ConfigurationError, match="needs the package `wandb`"):
        read_runs([tmp_path / "other"])


def test_run_without_an_exit_is_unfinished_and_named_by_its_display_name(tmp_path):
    run = read_run(write_log(tmp_path / "x", messages(ROWS, name="my run", exit_code=None)))
    assert (run.model, run.finished) == ("my run", False)


def test_cut_log_is_read_up_to_the_cut(tmp_path):
    path = write_log(tmp_path / "x", messages(ROWS, CONFIG))
    path.write_bytes(path.read_bytes()[:-3])
    run = read_run(path)
    assert (run.broken, run.rounds.tolist(), run.finished) == (1, [1, 2], False)


def test_file_that_is_no_log_is_refused(tmp_path):
    path = tmp_path / "run-x.wandb"
    path.write_bytes(b"something else")
    pytest.importorskip("wandb", reason="wandb is not installed")
    with pytest.raises(ReportError, match="does not start like a W&B log"):
        read_run(path)


def test_missing_package_is_named(tmp_path, monkeypatch):
    path = tmp_path / "run-x.wandb"
    path.write_bytes(HEADER)
    monkeypatch.setitem(__import__("sys").modules, "wandb.proto", None)
    with pytest.raises(ConfigurationError, match=r"is a W&B log and reading it needs the package `wandb`; run `pip"):
        read_run(path)


def test_runs_of_both_kinds_make_one_report(tmp_path):
    summary = {"data": "Digits", "partition": "Dirichlet(alpha=0.5)", "seed": 0}
    rows = [{"round": i + 1, "val/accuracy": a} for i, a in enumerate((0.5, 0.8, 0.9))]
    write_log(tmp_path / "wandb" / "offline-run-x", messages(rows, CONFIG, summary))
    write_run(tmp_path / "avg")
    made = report([tmp_path], out=tmp_path / "out")
    assert made.compared.methods == ["FedAvg", "FedProx"]
    assert [cells[0].text for _, cells in made.tables[0].rows] == ["80.00", "90.00"]


def test_log_written_by_wandb_itself_is_read_back(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_SILENT", "true")
    settings = wandb.Settings(mode="offline", console="off", x_disable_stats=True)
    run = wandb.init(project="p", dir=tmp_path, name="n", config=CONFIG, settings=settings)
    for number, accuracy in enumerate((0.5, 0.75), start=1):
        run.log({"round": number, "val/accuracy": accuracy, "round/seconds": 2.0})
    run.summary["partition"] = "IID()"
    run.finish()
    wandb.teardown()  # the file is whole only when the writing process has ended
    made = report([tmp_path], out=tmp_path / "out")
    found = made.compared.of("Digits, IID", "FedProx")[0]
    assert (found.seed, found.finished, found.logged("val/accuracy").tolist()) == (7, True, [0.5, 0.75])
