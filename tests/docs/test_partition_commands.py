"""The `flightning partition` lines of the documentation run, and the table on heterogeneity shows what they print."""

import re
import shlex
from pathlib import Path

import pytest

from flightning.cli import main
from flightning.datamodules.view import View
from flightning.partition.command import build_data

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
HETEROGENEITY = ROOT / "docs" / "heterogeneity.md"

COMMAND = re.compile(r"^(?:python -m )?flightning partition (.+)$", re.MULTILINE)
#: Options that name files or sets of the Hub which only the reader has.
OF_THE_READER = ("--data.path", "--data.data_files", "data/")


def commands(page):
    fenced = "\n".join(re.findall(r"^```bash\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL))
    return [shlex.split(line, comments=True) for line in COMMAND.findall(fenced.replace("\\\n", " "))]


RUNNABLE = {
    shlex.join(arguments): arguments
    for page in PAGES
    for arguments in commands(page)
    if not any(word.startswith(OF_THE_READER) for word in arguments)
}


@pytest.fixture(autouse=True)
def _place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # the command seeds everything, as `fit` does
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    monkeypatch.setenv("PL_SEED_WORKERS", "0")


@pytest.mark.parametrize("line", RUNNABLE)
def test_it_runs(line, tmp_path, capsys):
    arguments = RUNNABLE[line]
    assert main(["partition", *arguments]) == 0, capsys.readouterr().err
    out = arguments[arguments.index("--out") + 1] if "--out" in arguments else "partition"
    assert (tmp_path / out / "partition.png").is_file()


def test_each_of_the_five_kinds_has_a_command_and_a_picture():
    sections = re.split(r"^## ", HETEROGENEITY.read_text(), flags=re.MULTILINE)[1:6]
    titles = [section.splitlines()[0] for section in sections]
    assert titles == [
        "Feature skew",
        "Label skew",
        "Same label, different features",
        "Same features, different label",
        "Quantity skew",
    ]
    for section in sections:
        assert len(COMMAND.findall(section)) == 1
        (picture,) = re.findall(r"^!\[.+\]\((.+)\)$", section, re.MULTILINE)
        assert (HETEROGENEITY.parent / picture).stat().st_size < 100_000


def test_the_table_shows_what_the_commands_print():
    rows = {cells[0]: cells[1:] for cells in table("| clients | Gini")}
    kinds = [commands_of(title) for title in ("Feature", "Label", "Same label", "Same features", "Quantity")]
    kinds[1] = [a for a in kinds[1] if a not in ("0.5", "5")]  # the row is that of alpha = 0.1
    shown = [["--config", "quickstart", "--data.partition", "IID"], *kinds]
    assert len(rows) == len(shown)
    for (name, cells), arguments in zip(rows.items(), shown, strict=True):
        view = View.of("", build_data(arguments))
        numbers, changed = view.numbers, view.changed_labels
        expected = [
            f"{numbers.gini:.3f}",
            f"{numbers.effective_classes:.1f}",
            f"{numbers.emd:.2f}",
            f"{numbers.jensen_shannon:.3f}",
            f"{view.feature_shift:.3f}",
            "" if changed is None else f"{changed:.0%}",
        ]
        assert [cell.strip("*") for cell in cells] == expected, name


def commands_of(title):
    section = next(s for s in re.split(r"^## ", HETEROGENEITY.read_text(), flags=re.MULTILINE) if s.startswith(title))
    arguments = shlex.split(COMMAND.findall(section)[0])
    return arguments[: arguments.index("--out")]


def table(start):
    lines = HETEROGENEITY.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(start)) + 2
    rows = []
    for line in lines[first:]:
        if not line.startswith("|"):
            return rows
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    raise AssertionError("the table has no end")
