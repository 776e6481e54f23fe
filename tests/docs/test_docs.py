"""What the documentation shows is true: its Python runs, its links lead somewhere, its command lines parse."""

import re
import shlex
import sys
import types
from importlib import import_module
from pathlib import Path

import pytest
import yaml

import flightning.algorithms
from flightning.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md")])
CONFIGS = sorted(path.stem for path in (ROOT / "flightning" / "configs").glob("*.yaml"))
MODELS = sorted(n for n in flightning.algorithms.__all__ if not n.endswith("Mixin"))

#: Also with variables before it, and started by `srun` or `torchrun`.
COMMAND = re.compile(
    r"^(?:\w+=\S+ )*(?:srun |torchrun (?:--\S+ )*-m |python -m |\S*/)?flightning (fit|validate|test|predict) (.+)$"
)
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
    """Page, verb and arguments of every command line of a code block; one that only names a config is left out."""
    found = {}
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        fenced = "\n".join(re.findall(r"^```(?:bash|sh|console)?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
        outside = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        indented = "\n".join(re.findall(r"^ {4}(?=\S)(.*)$", outside, re.MULTILINE))
        for line in f"{fenced}\n{indented}".splitlines():
            match = COMMAND.match(line.strip().removeprefix("$ "))
            if match and arguments_of(match[2]) not in ([["--config", c] for c in CONFIGS]):
                found.setdefault((match[1], match[2]), page)
    return [pytest.param(page, verb, arguments_of(text), id=f"{verb} {text}") for (verb, text), page in found.items()]


def arguments_of(text):
    """The words of a command line without variables of the shell, which may stand for nothing."""
    return [word for word in shlex.split(text, comments=True) if not re.fullmatch(r"\$[A-Z]+", word)]


def without_code(text):
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def anchors(page):
    """Anchors of the headings of a page, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.replace("`", "").lower()).strip().replace(" ", "-") for h in headings}


def expect_parsed(arguments, capsys, verb="fit"):
    with pytest.raises(SystemExit) as stopped:
        main([verb, *arguments, "--print_config"])
    shown = capsys.readouterr()
    assert stopped.value.code == 0, shown.err
    return shown.out


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


@pytest.mark.parametrize("config", CONFIGS)
def test_packaged_config_is_in_the_table(config):
    section = (ROOT / "docs" / "configuration.md").read_text().partition("## Packaged configurations")[2]
    assert f"`{config}`" in section


def test_packaged_grids_are_named():
    section = (ROOT / "docs" / "configuration.md").read_text().partition("## Packaged configurations")[2]
    grids = [path.stem for path in (ROOT / "flightning" / "configs" / "compare").glob("*.yaml")]
    assert [grid for grid in grids if f"`{grid}`" not in section] == []


@pytest.mark.parametrize(("page", "verb", "arguments"), commands())
def test_command_line_parses(page, verb, arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_files_of(page, arguments)
    write_config_of_run(arguments, capsys)
    monkeypatch.syspath_prepend(tmp_path)
    expect_parsed(arguments, capsys, verb)
    for module in tmp_path.glob("*.py"):
        sys.modules.pop(module.stem, None)


def test_there_are_command_lines_of_all_verbs_but_predict():
    assert {parameters.values[1] for parameters in commands()} == {"fit", "validate", "test"}


def write_config_of_run(arguments, capsys):
    """Write the configuration that a run has left, where a command line begins with it."""
    for path in (Path(word) for word in arguments if word.startswith("runs/") and word.endswith("/config.yaml")):
        config = yaml.safe_load(expect_parsed(["--config", "quickstart"], capsys))
        path.parent.mkdir(parents=True)
        path.write_text(yaml.safe_dump({k: v for k, v in config.items() if k not in ("run_folder", "budget")}))


def write_files_of(page, arguments):
    """Write what a reader has written by then: YAML blocks by their first line, and modules with the classes shown."""
    for block in blocks(page, "yaml"):
        title = re.match(r"# (\S+\.yaml)\n", block)
        if title:
            Path(title[1]).write_text(block)
    shown = blocks(page, "python")
    for module, made in (m.groups() for m in (re.fullmatch(r"([a-z]\w*)\.(\w+)", a) for a in arguments) if m):
        last = next((i for i, block in enumerate(shown) if re.search(rf"^(class|def) {made}\(", block, re.M)), None)
        if last is not None:
            Path(f"{module}.py").write_text("\n".join(shown[: last + 1]))


def test_readme_runs_in_order(tmp_path, monkeypatch):
    # cut to few rounds: the first line goes on with the run of `make quickstart`; the last fetches its data
    monkeypatch.chdir(tmp_path)
    short = ["--federation.local_epochs", "1", "--trainer.max_epochs"]
    assert main(["fit", "--config", "quickstart", *short, "1"]) == 0
    (block,) = [b for b in blocks(ROOT / "README.md", "bash") if "--ckpt_path last" in b]
    lines = [shlex.split(line)[1:] for line in block.splitlines()]
    for rounds, line in zip((2, 1, 1, 1), lines[:-1], strict=True):
        assert main([*line, *short, str(rounds)]) == 0
    assert "FashionMNIST" in lines[-1]
    assert sorted(str(path.relative_to("runs")) for path in Path("runs").glob("*/version_*")) == [
        "digits-fedavg/version_0",
        "digits-fedavg/version_1",
        "digits-fedprox/version_0",
        "digits-scaffold/version_0",
    ]


API = re.split(r"^## ", (ROOT / "docs" / "api.md").read_text(), flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("section", API, ids=lambda section: section.split()[0])
def test_public_names_are_in_the_api(section):
    package = import_module(section.split()[0])
    public = getattr(package, "__all__", None) or {path.stem for path in Path(package.__file__).parent.iterdir()}
    assert sorted(n for n in public if f"`{n}`" not in section and n not in ("__init__", "__pycache__")) == []


def test_all_packages_are_in_the_api():
    packages = {path.parent.name for path in (ROOT / "flightning").glob("*/__init__.py")}
    assert packages <= {section.split()[0].removeprefix("flightning.") for section in API}


@pytest.mark.parametrize("page", ["README.md", "docs/algorithms/index.md"])
def test_table_of_algorithms_is_complete(page):
    listed = re.findall(r"^\| \[`(\w+)`\]\(", (ROOT / page).read_text(), re.MULTILINE)
    assert sorted(listed) == MODELS
    assert len(set(listed)) == len(listed)
