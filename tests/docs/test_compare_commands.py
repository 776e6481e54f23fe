"""Command lines of the documentation and of the Makefile that compare, report or make dashboards are accepted."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

import flightning.dashboard
from flightning.compare.cells import make_cells
from flightning.compare.command import _parser, make_grid
from flightning.report.command import _parser as report_parser

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]


def commands(verb):
    """Arguments of all command lines of a verb, in code blocks and between backticks."""
    found = {}
    for page in PAGES:
        for text in re.findall(
            r"^```bash\n(.*?)^```$|`(flightning [^`]+)`", page.read_text(), re.MULTILINE | re.DOTALL
        ):
            for line in "".join(text).replace("\\\n", " ").splitlines() if text[0] else [text[1].replace("\n", " ")]:
                line = re.sub(r"^(\w+=\S+ )+", "", line)  # variables of the environment
                if line.startswith(f"flightning {verb} ") and not re.search(r"\.\.\.|<|--help|\$", line):
                    found[line] = shlex.split(line)[2:]
    return [pytest.param(arguments, id=line) for line, arguments in found.items()]


def expect_cells(arguments, folder):
    options, passed = _parser().parse_known_args(arguments)
    return make_cells(make_grid(options, passed), folder)


@pytest.fixture
def own_grid(tmp_path, monkeypatch):
    """The working directory has the grid file of the documentation."""
    page = (ROOT / "docs" / "compare.md").read_text()
    (tmp_path / "grid.yaml").write_text(page.partition("```yaml\n# grid.yaml\n")[2].partition("```")[0])
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("arguments", commands("compare"))
def test_comparisons_make_cells(arguments, own_grid, tmp_path):
    assert expect_cells(arguments, tmp_path)


@pytest.mark.parametrize("arguments", commands("report"))
def test_reports_are_parsed(arguments):
    assert report_parser().parse_args(arguments).runs


@pytest.mark.parametrize("arguments", commands("dashboard"))
def test_dashboards_are_printed(arguments, capsys):
    assert flightning.dashboard.run([*arguments, "--dry-run"]) == 0
    assert "sections:" in capsys.readouterr().out


def test_there_are_such_command_lines():
    assert [len(commands(verb)) >= 1 for verb in ("compare", "report", "dashboard")] == [True] * 3


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no `make`")
@pytest.mark.parametrize("target", ["quickstart", "paper-fedrl", "paper-rfedavg", "paper-fedcd", "paper-cdfdm"])
def test_targets_of_the_makefile_make_cells(target, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = ["make", "--dry-run", "--always-make", target, "DATA=/data", "BUDGET=0.05", "OPTIONS=--only 'seed 0'"]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    found = [shlex.split(line)[2:] for line in printed.splitlines() if re.match(r"\S+flightning compare ", line)]
    assert len(found) == (2 if target in ("paper-rfedavg", "paper-cdfdm") else 1)
    for arguments in found:
        cells = expect_cells(arguments, tmp_path)
        if target != "quickstart":
            assert all({"--data.root", "/data"} <= set(c.arguments) for c in cells if c.data != "Sent140")
            assert all("--budget" in c.arguments and "0.05" in c.arguments for c in cells)
