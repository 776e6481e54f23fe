"""What the documentation shows is true: its Python runs, its links lead somewhere, its command lines parse."""

import re
import shlex
import sys
import types
from pathlib import Path

import pytest

import flightning.algorithms
from flightning.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md")])
CONFIGS = sorted(path.stem for path in (ROOT / "flightning" / "configs").glob("*.yaml"))
MODELS = sorted(n for n in flightning.algorithms.__all__ if not n.endswith("Mixin"))

COMMAND = re.compile(r"^(?:\w+=\S+ )*(?:python -m |\S*/)?flightning fit (.+)$")
LINK = re.compile(r"(?:!?\[[^\]]*\]\(|src=\")([^)\"\s]+)[)\"]")


@pytest.fixture(autouse=True)
def _own_arguments(monkeypatch):
    """LightningCLI warns where the arguments of the process are not its own."""
    monkeypatch.setattr(sys, "argv", ["flightning"])


def name(path):
    return str(path.relative_to(ROOT))


def blocks(page, language):
    """Contents of the fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def commands():
    """Page and arguments of every command line of a code block; one that only names a packaged config is left out."""
    found = {}
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        fenced = "\n".join(re.findall(r"^```(?:bash|sh|console)?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
        outside = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        indented = "\n".join(re.findall(r"^ {4}(?=\S)(.*)$", outside, re.MULTILINE))
        for line in f"{fenced}\n{indented}".splitlines():
            match = COMMAND.match(line.strip().removeprefix("$ "))
            if match and shlex.split(match[1], comments=True) not in ([["--config", c] for c in CONFIGS]):
                found.setdefault(match[1], page)
    return [pytest.param(page, shlex.split(text, comments=True), id=text) for text, page in found.items()]


def without_code(text):
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def anchors(page):
    """Anchors of the headings of a page, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.replace("`", "").lower()).strip().replace(" ", "-") for h in headings}


def expect_parsed(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["fit", *arguments, "--print_config"])
    assert stopped.value.code == 0, capsys.readouterr().err


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("shown_in_docs")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for index, block in enumerate(blocks(page, "python")):
        exec(compile(block, f"{name(page)}, Python block {index + 1}", "exec"), module.__dict__)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_lead_somewhere(page):
    for link in LINK.findall(without_code(page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{name(page)} links to {link}, which does not exist"
        assert not anchor or anchor in anchors(path), f"{name(page)} links to {link}, but there is no such heading"


@pytest.mark.parametrize("config", CONFIGS)
def test_packaged_config_parses(config, capsys):
    expect_parsed(["--config", config], capsys)


@pytest.mark.parametrize("config", CONFIGS)
def test_packaged_config_says_where_it_comes_from(config):
    assert (ROOT / "flightning" / "configs" / f"{config}.yaml").read_text().startswith("# ")


@pytest.mark.parametrize(("page", "arguments"), commands())
def test_command_line_parses(page, arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_files_of(page, arguments)
    monkeypatch.syspath_prepend(tmp_path)
    expect_parsed(arguments, capsys)
    for module in tmp_path.glob("*.py"):
        sys.modules.pop(module.stem, None)


def write_files_of(page, arguments):
    """Write what a reader has written by then: YAML blocks by their first line, and modules with the classes shown."""
    for block in blocks(page, "yaml"):
        title = re.match(r"# (\S+\.yaml)\n", block)
        if title:
            Path(title[1]).write_text(block)
    shown = blocks(page, "python")
    for module, cls in (m.groups() for m in (re.fullmatch(r"([a-z]\w*)\.([A-Z]\w*)", a) for a in arguments) if m):
        last = next((i for i, block in enumerate(shown) if f"class {cls}(" in block), None)
        if last is not None:
            Path(f"{module}.py").write_text("\n".join(shown[: last + 1]))


@pytest.mark.parametrize("page", ["README.md", "docs/algorithms/index.md"])
def test_table_of_algorithms_is_complete(page):
    listed = re.findall(r"^\| \[`(\w+)`\]\(", (ROOT / page).read_text(), re.MULTILINE)
    assert sorted(listed) == MODELS
    assert len(set(listed)) == len(listed)
