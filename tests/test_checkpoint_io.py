import resource
from contextlib import contextmanager

import pytest
import torch

from flightning.checkpoint_io import AtomicCheckpointIO
from flightning.errors import CheckpointError

IO = AtomicCheckpointIO()
CHECKPOINT = {"state_dict": {"w": torch.arange(1000.0)}, "epoch": 3}


def test_round_trip(tmp_path):
    IO.save_checkpoint(CHECKPOINT, tmp_path / "new" / "a.ckpt")
    loaded = IO.load_checkpoint(tmp_path / "new" / "a.ckpt")
    assert torch.equal(loaded["state_dict"]["w"], CHECKPOINT["state_dict"]["w"])


def test_nothing_but_the_checkpoint_is_left(tmp_path):
    IO.save_checkpoint(CHECKPOINT, tmp_path / "a.ckpt")
    assert [p.name for p in tmp_path.iterdir()] == ["a.ckpt"]


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.99])
def test_a_truncated_checkpoint_is_refused_with_the_remedy(tmp_path, keep):
    path = tmp_path / "a.ckpt"
    IO.save_checkpoint(CHECKPOINT, path)
    content = path.read_bytes()
    path.write_bytes(content[: keep if isinstance(keep, int) else int(keep * len(content))])
    with pytest.raises(CheckpointError, match=r"a.ckpt` is truncated or no checkpoint at all: take an older one"):
        IO.load_checkpoint(path)


def test_a_checkpoint_that_is_damaged_inside_is_refused(tmp_path):
    path = tmp_path / "a.ckpt"
    IO.save_checkpoint(CHECKPOINT, path)
    content = bytearray(path.read_bytes())
    content[40:200] = bytes(160)
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="truncated or no checkpoint at all"):
        IO.load_checkpoint(path)


def test_weights_alone_are_refused(tmp_path):
    torch.save({"w": torch.ones(2)}, tmp_path / "weights.pt")
    with pytest.raises(
        CheckpointError, match=r"no checkpoint of a Trainer .* give the `last.ckpt` of a flightning run"
    ):
        IO.load_checkpoint(tmp_path / "weights.pt")


def test_a_missing_checkpoint_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"there is no checkpoint `.*none.ckpt`: give the path"):
        IO.load_checkpoint(tmp_path / "none.ckpt")


@contextmanager
def full_disk(limit=100_000):
    """No file may grow beyond this many bytes: writing fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("had_one", [True, False])
def test_a_full_disk_leaves_the_previous_checkpoint_usable(tmp_path, had_one):
    path = tmp_path / "last.ckpt"
    if had_one:
        IO.save_checkpoint(CHECKPOINT, path)
    kept = "the previous checkpoint there is unchanged" if had_one else "nothing was written"
    match = rf"could not write the checkpoint `.*last.ckpt` .*; {kept}. Free some disk space"
    with full_disk(), pytest.raises(CheckpointError, match=match):
        IO.save_checkpoint({"state_dict": {"w": torch.zeros(10**6)}}, path)
    assert [p.name for p in tmp_path.iterdir()] == (["last.ckpt"] if had_one else [])
    if had_one:
        assert IO.load_checkpoint(path)["epoch"] == 3


def test_a_folder_that_cannot_be_made_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"could not write the checkpoint .*nothing was written"):
        IO.save_checkpoint(CHECKPOINT, tmp_path / "file" / "a.ckpt")


def test_what_a_killed_run_left_behind_is_written_over(tmp_path):
    (tmp_path / ".a.ckpt.unfinished").write_bytes(b"half")
    IO.save_checkpoint(CHECKPOINT, tmp_path / "a.ckpt")
    assert [p.name for p in tmp_path.iterdir()] == ["a.ckpt"]
