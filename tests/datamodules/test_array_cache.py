"""Arrays on disk: whole, checked, made again when damaged."""

import json
import os

import numpy as np
import pytest

from flightning.datamodules.array_cache import Arrays, cache_folder, load_or_make
from flightning.errors import ConfigurationError

PICTURES = np.arange(600, dtype=np.uint8).reshape(100, 6)


class Maker:
    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return Arrays({"pictures": PICTURES, "names": np.array(["a", "bc"])}, {"classes": ["x", "y"]})


@pytest.fixture
def folder(tmp_path):
    load_or_make(tmp_path / "kept", Maker())
    return tmp_path / "kept"


def test_what_was_kept_is_not_made_again(folder):
    maker = Maker()
    kept = load_or_make(folder, maker)
    assert maker.calls == 0
    assert np.array_equal(kept.arrays["pictures"], PICTURES)
    assert kept.arrays["names"].tolist() == ["a", "bc"]
    assert kept.meta["classes"] == ["x", "y"]


def test_nothing_unfinished_is_left_behind(folder):
    assert [path.name for path in folder.parent.iterdir()] == ["kept"]


def flip_a_byte(folder):
    path = folder / "pictures.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def cut_off(folder):
    path = folder / "pictures.npy"
    path.write_bytes(path.read_bytes()[:-100])


def remove_a_file(folder):
    (folder / "names.npy").unlink()


def cut_off_the_list(folder):
    path = folder / "meta.json"
    path.write_text(path.read_text()[:-5])


def empty_the_list(folder):
    (folder / "meta.json").write_text("[]")


def remove_the_list(folder):
    (folder / "meta.json").unlink()


@pytest.mark.parametrize(
    "damage", [flip_a_byte, cut_off, remove_a_file, cut_off_the_list, empty_the_list, remove_the_list]
)
def test_damage_is_found_and_repaired(folder, damage):
    damage(folder)
    maker = Maker()
    kept = load_or_make(folder, maker)
    assert maker.calls == 1
    assert np.array_equal(kept.arrays["pictures"], PICTURES)
    assert load_or_make(folder, maker).meta["classes"] == ["x", "y"]
    assert maker.calls == 1
    assert [path.name for path in folder.parent.iterdir()] == ["kept"]


def test_a_failure_while_making_leaves_nothing(tmp_path):
    def fail():
        raise ValueError("bad file")

    with pytest.raises(ValueError, match="bad file"):
        load_or_make(tmp_path / "kept", fail)
    assert not list(tmp_path.iterdir())


def test_writing_into_the_arrays_does_not_reach_the_file(folder):
    load_or_make(folder, Maker()).arrays["pictures"][0] = 99
    assert np.array_equal(load_or_make(folder, Maker()).arrays["pictures"], PICTURES)


def test_another_process_that_was_faster_wins(tmp_path):
    folder = tmp_path / "kept"

    def make_meanwhile():
        load_or_make(folder, Maker())
        return Arrays({"pictures": PICTURES}, {"classes": ["late"]})

    kept = load_or_make(folder, make_meanwhile)
    assert np.array_equal(kept.arrays["pictures"], PICTURES)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        ConfigurationError, match=r"the folder .*file/kept` for cached data cannot be written .*`cache_dir`"
    ):
        load_or_make(tmp_path / "file" / "kept", Maker())


def test_all_settings_decide_about_the_place():
    settings = {"resize": None, "split": "train"}
    places = {
        cache_folder("x", "cifar10", settings),
        cache_folder("x", "cifar10", {**settings, "resize": 28}),
        cache_folder("x", "cifar10", {**settings, "split": "test"}),
    }
    assert len(places) == 3
    assert cache_folder("x", "cifar10", dict(reversed(settings.items()))) in places


def test_default_place_is_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setitem(os.environ, "XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder(None, "a", {}).parent == tmp_path / "flightning"


def test_meta_holds_the_checksum_of_every_array(folder):
    assert set(json.loads((folder / "meta.json").read_text())["checksums"]) == {"pictures", "names"}
