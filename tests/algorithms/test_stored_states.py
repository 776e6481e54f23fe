import json
import os
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from flightning.algorithms import SCAFFOLD, SOLO, FedAvg
from flightning.algorithms.state import ClientStates
from flightning.algorithms.stored_states import EvaluatedClientStates, StoredClientStates
from flightning.callbacks import Federation
from flightning.errors import CheckpointError, ConfigurationError
from tests.classification import Crash, assert_equal_nested, assert_same, make_data, make_module, run
from tests.problems import make_trainer

CPU = torch.device("cpu")


def files(folder):
    return sorted(path.name for path in folder.glob("*/*.state"))


def stored(folder, **clients):
    states = StoredClientStates(folder)
    for client, value in clients.items():
        states.save(int(client[1:]), {"w": torch.tensor(value)})
    return states


def value(states, client):
    return states.load(client, CPU)["w"].item()


def federation(folder=None):
    return Federation(local_epochs=2, participation=2, state_dir=None if folder is None else str(folder))


# --- files --------------------------------------------------------------------------------------------------------


def test_a_state_is_read_back_from_its_file(tmp_path):
    states = stored(tmp_path, c3=1.5, c12=2.5)
    assert (value(states, 3), value(states, 12)) == (1.5, 2.5)
    assert (list(states), len(states), 3 in states, 4 in states) == ([3, 12], 2, True, False)
    assert states.load(4, CPU) == {}
    assert len(files(tmp_path)) == 2


def test_a_loaded_state_is_mapped_and_changing_it_leaves_the_file_alone(tmp_path):
    states = StoredClientStates(tmp_path)
    states.save(0, {"w": torch.zeros(100_000)})
    loaded = states.load(0, CPU)["w"]
    loaded.fill_(7)
    assert "0-0-" in Path("/proc/self/maps").read_text()
    assert states.load(0, CPU)["w"].sum() == 0


def test_a_new_state_is_a_new_file_and_the_old_one_stays(tmp_path):
    states = stored(tmp_path, c1=1.0)
    (before,) = files(tmp_path)
    content = next(tmp_path.glob("*/*.state")).read_bytes()
    states.save(1, {"w": torch.tensor(2.0)})
    assert value(states, 1) == 2.0
    assert next(tmp_path.glob(f"*/{before}")).read_bytes() == content


def test_clients_are_spread_over_folders(tmp_path):
    stored(tmp_path, c999=1.0, c1000=1.0, c25000=1.0)
    assert sorted(path.parent.name for path in tmp_path.glob("*/*.state")) == ["0", "1", "25"]


def test_other_processes_hear_of_names_alone(tmp_path):
    ours, theirs = stored(tmp_path, c1=1.0), StoredClientStates(tmp_path)
    told = ours.told([1, 2])
    assert all(isinstance(name, str) for name in told.values())
    theirs.hear(told)
    assert value(theirs, 1) == 1.0


def test_a_file_that_other_processes_cannot_see_is_named(tmp_path):
    theirs = StoredClientStates(tmp_path / "elsewhere")
    theirs.hear(stored(tmp_path, c1=1.0).told([1]))
    with pytest.raises(CheckpointError, match=r"state of client 1, `.*1-0-.*`, is missing: `state_dir` must be a"):
        theirs.load(1, CPU)


# --- checkpoints --------------------------------------------------------------------------------------------------


def test_round_trip_through_a_checkpoint(tmp_path):
    kept, restored = stored(tmp_path, c1=1.0, c2=2.0).state_dict(), StoredClientStates(tmp_path)
    restored.load_state_dict(kept)
    restored.check()
    restored.start()
    assert (value(restored, 1), value(restored, 2)) == (1.0, 2.0)


def test_a_checkpoint_with_files_can_go_on_in_memory_and_the_other_way_round(tmp_path):
    memory, disk = ClientStates(), StoredClientStates(tmp_path / "b")
    memory.load_state_dict(stored(tmp_path / "a", c1=1.0).state_dict())
    assert value(memory, 1) == 1.0
    disk.load_state_dict(memory.state_dict())
    disk.start()
    assert value(disk, 1) == 1.0
    assert len(files(tmp_path / "b")) == 1


@pytest.mark.parametrize("kind", [StoredClientStates, lambda folder: ClientStates()])
def test_a_damaged_file_is_refused_by_name(tmp_path, kind):
    kept = stored(tmp_path, c1=1.0, c2=2.0).state_dict()
    path = next(tmp_path.glob("*/2-*.state"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    restored = kind(tmp_path)
    with pytest.raises(CheckpointError, match=rf"state of client 2, `{path}`, is damaged: its checksum is"):
        restored.load_state_dict(kept) or restored.load(2, CPU)


def test_a_missing_file_is_refused_by_name(tmp_path):
    kept = stored(tmp_path, c1=1.0, c2=2.0).state_dict()
    path = next(tmp_path.glob("*/2-*.state"))
    path.unlink()
    with pytest.raises(CheckpointError, match=rf"2 clients and 1 of them are missing \(first: `{path}` of client 2\)"):
        StoredClientStates(tmp_path).load_state_dict(kept)


def test_another_folder_than_that_of_the_checkpoint_is_refused(tmp_path):
    kept = stored(tmp_path / "a", c1=1.0).state_dict()
    with pytest.raises(
        CheckpointError, match=rf"folder that holds them \(the checkpoint was written with `{tmp_path}/a`"
    ):
        StoredClientStates(tmp_path / "b").load_state_dict(kept)


def test_a_folder_that_was_moved_is_found(tmp_path):
    kept = stored(tmp_path / "a", c1=1.0).state_dict()
    (tmp_path / "a").rename(tmp_path / "b")
    moved = StoredClientStates(tmp_path / "b")
    moved.load_state_dict(kept)
    assert value(moved, 1) == 1.0


def test_a_fresh_run_refuses_the_states_of_another(tmp_path):
    stored(tmp_path, c1=1.0)
    with pytest.raises(ConfigurationError, match="holds the client states of another run: choose another folder"):
        StoredClientStates(tmp_path).check()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"cannot be made .*: give a folder that can be written to"):
        StoredClientStates(tmp_path / "file" / "states").start()


# --- files of nobody ----------------------------------------------------------------------------------------------


def checkpoint(path, states):
    """What the checkpoint IO does."""
    names = states.state_dict()["files"].values()
    states.refer(path, names)
    path.touch()
    states.release(path, names)


def test_files_of_the_last_checkpoint_are_kept_until_the_next(tmp_path):
    states, path = stored(tmp_path, c1=1.0), tmp_path / "last.ckpt"
    checkpoint(path, states)
    states.save(1, {"w": torch.tensor(2.0)})
    assert len(files(tmp_path)) == 2
    checkpoint(path, states)
    assert files(tmp_path) == list(states.state_dict()["files"].values())


def test_a_state_that_changes_twice_between_checkpoints_leaves_nothing_behind(tmp_path):
    states = stored(tmp_path, c1=1.0)
    for number in (2.0, 1.0, 3.0):
        states.save(1, {"w": torch.tensor(number)})
    checkpoint(tmp_path / "last.ckpt", states)
    assert len(files(tmp_path)) == 1
    assert value(states, 1) == 3.0


def test_an_older_checkpoint_keeps_its_files_until_it_is_removed(tmp_path):
    states, best, last = stored(tmp_path, c1=1.0), tmp_path / "best.ckpt", tmp_path / "last.ckpt"
    checkpoint(best, states)
    states.save(1, {"w": torch.tensor(2.0)})
    checkpoint(last, states)
    assert len(files(tmp_path)) == 2
    best.unlink()  # by Lightning or by hand
    states.release(best, ())
    assert files(tmp_path) == list(states.state_dict()["files"].values())


def test_the_end_of_a_round_leaves_files_of_checkpoints(tmp_path):
    states = stored(tmp_path, c1=1.0)
    checkpoint(tmp_path / "last.ckpt", states)
    for number in (2.0, 3.0):
        states.save(1, {"w": torch.tensor(number)})
    states.end_round()
    assert [name.split("-")[1] for name in files(tmp_path)] == ["0", "2"]


def test_new_files_of_another_process_are_left_alone(tmp_path):
    ours, theirs = stored(tmp_path, c1=1.0), StoredClientStates(tmp_path)
    theirs.save(2, {"w": torch.tensor(5.0)})  # not told yet
    checkpoint(tmp_path / "last.ckpt", ours)
    assert value(theirs, 2) == 5.0


def test_what_a_killed_run_left_is_deleted_when_it_goes_on(tmp_path):
    states, last = stored(tmp_path, c1=1.0), tmp_path / "last.ckpt"
    checkpoint(last, states)
    kept = states.state_dict()
    states.save(1, {"w": torch.tensor(2.0)})
    (tmp_path / "0" / ".1-2-abc.state.77.unfinished").touch()
    resumed = StoredClientStates(tmp_path)
    resumed.load_state_dict(kept)
    resumed.start()
    assert files(tmp_path) == list(kept["files"].values())
    assert not list(tmp_path.glob("*/.*"))


# --- through the Trainer ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [SCAFFOLD, SOLO])
def test_a_run_with_state_on_disk_is_the_same_bit_for_bit(tmp_path, cls):
    memory, _ = run(cls, 3, federation=federation())
    disk, _ = run(cls, 3, federation=federation(tmp_path))
    assert_same(memory, disk)
    assert len(files(tmp_path)) >= len(disk.client_states) > 0
    for client in memory.client_states:
        assert_equal_nested(memory.client_states.load(client, CPU), disk.client_states.load(client, CPU))


@pytest.mark.parametrize("goes_on_with", ["disk", "memory"])
def test_a_run_that_breaks_off_inside_a_round_goes_on_exactly(tmp_path, goes_on_with):
    class CrashInside(Crash):
        def on_train_epoch_start(self, trainer, pl_module):
            pass

        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if trainer.current_epoch == 2 and batch_idx == 7:  # the first client of the round has saved its state
                raise InterruptedError

    whole, _ = run(SCAFFOLD, 4, federation=federation())
    saving = ModelCheckpoint(dirpath=tmp_path, save_last=True)
    with pytest.raises(InterruptedError):
        run(SCAFFOLD, 4, federation=federation(tmp_path / "states"), callbacks=[CrashInside(), saving])
    folder = tmp_path / "states" if goes_on_with == "disk" else None
    resumed, _ = run(SCAFFOLD, 4, federation=federation(folder), ckpt_path=str(tmp_path / "last.ckpt"), seed=9)
    assert_same(whole, resumed)
    for client in whole.client_states:
        assert_equal_nested(whole.client_states.load(client, CPU), resumed.client_states.load(client, CPU))


def test_the_checkpoint_holds_names_and_old_files_go(tmp_path):
    saving = ModelCheckpoint(dirpath=tmp_path, save_last=True, save_top_k=0)
    run(SCAFFOLD, 5, federation=federation(tmp_path / "states"), callbacks=[saving])
    kept = torch.load(tmp_path / "last.ckpt", weights_only=False)["flightning"]["clients"]
    assert kept["folder"] == str(tmp_path / "states")
    assert sorted(kept["files"].values()) == files(tmp_path / "states")
    assert list(json.loads((tmp_path / "states" / "checkpoints.json").read_text())) == [str(tmp_path / "last.ckpt")]


def test_old_files_go_without_any_checkpoint(tmp_path):
    module, _ = run(SCAFFOLD, 4, federation=federation(tmp_path))
    assert len(files(tmp_path)) == len(module.client_states) == 3


def test_a_relative_folder_lies_in_that_of_the_run(tmp_path):
    trainer = make_trainer(1, Federation(state_dir="states"), default_root_dir=tmp_path)
    trainer.fit(make_module(SCAFFOLD), datamodule=make_data())
    assert len(files(tmp_path / "states")) == 3


def test_a_second_fit_of_the_same_module_keeps_its_states(tmp_path):
    module = make_module(SCAFFOLD)
    for folder in (None, tmp_path, tmp_path, None):
        fed = Federation(state_dir=None if folder is None else str(folder))
        make_trainer(1, fed).fit(module, datamodule=make_data())
        assert len(module.client_states) == 3
    assert type(module.client_states) is ClientStates


def test_an_algorithm_without_state_writes_no_file(tmp_path):
    run(FedAvg, 1, federation=federation(tmp_path))
    assert files(tmp_path) == []


def test_validation_reads_the_files_of_the_checkpoint(tmp_path):
    saving = ModelCheckpoint(dirpath=tmp_path, save_last=True, save_top_k=0)
    _, rounds = run(SOLO, 2, federation=federation(tmp_path / "states"), callbacks=[saving])
    (metrics,) = make_trainer(1).validate(
        make_module(SOLO, seed=4), datamodule=make_data(), ckpt_path=str(tmp_path / "last.ckpt"), verbose=False
    )
    assert metrics["val/accuracy"] == pytest.approx(rounds[-1]["val/accuracy"])


def test_an_evaluation_leaves_files_unread_that_it_does_not_need(tmp_path):
    saving = ModelCheckpoint(dirpath=tmp_path, save_last=True, save_top_k=0)
    _, rounds = run(SCAFFOLD, 2, federation=federation(tmp_path / "states"), callbacks=[saving])
    for path in (tmp_path / "states").glob("*/*.state"):
        path.write_bytes(b"unreadable")
    (metrics,) = make_trainer(1).validate(
        make_module(SCAFFOLD, seed=4), datamodule=make_data(), ckpt_path=str(tmp_path / "last.ckpt"), verbose=False
    )
    assert metrics["val/accuracy"] == pytest.approx(rounds[-1]["val/accuracy"])


def test_states_that_were_evaluated_go_on_in_memory(tmp_path):
    kept, evaluated, memory = stored(tmp_path, c1=1.0, c12=2.0).state_dict(), EvaluatedClientStates({}), ClientStates()
    evaluated.load_state_dict(kept)
    assert (list(evaluated), len(evaluated), 12 in evaluated, 2 in evaluated) == ([1, 12], 2, True, False)
    assert (value(evaluated, 12), evaluated.load(2, CPU)) == (2.0, {})
    memory.load_state_dict(evaluated.state_dict())
    assert (list(memory), value(memory, 1)) == ([1, 12], 1.0)


def test_the_second_process_to_write_the_same_state_leaves_the_file_alone(tmp_path):
    stored(tmp_path, c1=1.0)
    (path,) = tmp_path.glob("*/*.state")
    before = path.stat().st_ino
    assert value(stored(tmp_path, c1=1.0), 1) == 1.0
    assert path.stat().st_ino == before


def test_processes_of_two_machines_may_have_the_same_number(tmp_path, monkeypatch):
    written = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: written.append(Path(a).name) or replace(a, b))
    for _ in range(2):
        stored(tmp_path, c1=1.0)
        next(tmp_path.glob("*/*.state")).unlink()
    assert len(set(written)) == 2


def test_a_round_that_replaces_no_state_looks_at_no_file(tmp_path, monkeypatch):
    states = stored(tmp_path, c1=1.0)
    monkeypatch.setattr(Path, "read_text", lambda self: pytest.fail(f"{self} was read"))
    monkeypatch.setattr(Path, "exists", lambda self: pytest.fail(f"{self} was looked for"))
    states.end_round()


def test_the_needs_of_checkpoints_are_read_once(tmp_path, monkeypatch):
    states, reads = stored(tmp_path, c1=1.0), []
    states.refer(tmp_path / "a.ckpt", ["1"])
    (tmp_path / "a.ckpt").touch()
    read_text = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda self: reads.append(self) or read_text(self))
    for _ in range(3):
        states.save(1, {"w": torch.rand(())})
        states.refer(tmp_path / "a.ckpt", states.state_dict()["files"].values())
        states.release(tmp_path / "a.ckpt", states.state_dict()["files"].values())
        states.end_round()
    assert reads == []
    assert len(files(tmp_path)) == 1
