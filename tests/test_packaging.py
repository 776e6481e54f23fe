"""The wheel, installed apart from the sources and used from anywhere."""

import os
import shutil
import subprocess
import sys
import zipfile

import pytest

from tests.programs import ROOT, call, environment


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder, sources = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("sources")
    # the build leaves files next to the sources
    shutil.copytree(ROOT / "flightning", sources / "flightning", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(sources)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    [file] = folder.glob("flightning-*.whl")
    return file


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):
    """A folder for the module search path that holds what the wheel holds."""
    folder = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def test_the_wheel_holds_package_configurations_and_types(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"flightning/cli.py", "flightning/py.typed", "flightning/configs/quickstart.yaml"} <= names
    assert not any(name.startswith(("tests/", "benchmarks/", "docs/")) for name in names)
    assert {p.name for p in (ROOT / "flightning" / "configs").rglob("*.yaml")} == {
        name.rpartition("/")[2] for name in names if name.endswith(".yaml")
    }


def test_metadata_is_complete(wheel):
    archive = zipfile.ZipFile(wheel)
    [name] = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
    metadata = archive.read(name).decode()
    for field in (
        "Summary: ",
        "License-Expression: Apache-2.0",
        "Requires-Python: >=3.10",
        "Keywords: ",
    ):
        assert f"\n{field}" in metadata, field
    [entries] = [n for n in archive.namelist() if n.endswith("entry_points.txt")]
    assert "flightning = flightning.__main__:main" in archive.read(entries).decode()


def test_the_installed_package_runs_the_quickstart_from_anywhere(site, tmp_path):
    code = "import flightning, sys; from flightning.__main__ import main; print(flightning.__file__); sys.exit(main())"
    options = ["fit", "--config", "quickstart", "--trainer.max_epochs", "1"]
    done = subprocess.run(
        [sys.executable, "-c", code, *options],
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(site)),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(site))
    assert (tmp_path / "runs" / "digits-fedavg" / "version_0" / "summary.json").is_file()


def test_version(tmp_path):
    done = call("--version", cwd=tmp_path)
    assert done.stdout.startswith("flightning ")


@pytest.mark.parametrize("verb", ["report", "compare", "partition"])
def test_a_reader_that_leaves_early_is_no_error(verb):
    # as `flightning report --help | head -1`: whoever reads has closed the pipe
    read, write = os.pipe()
    os.close(read)
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-m", "flightning", verb, "--help"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False, env=buffered)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")
