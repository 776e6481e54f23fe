"""Who may import whom: `errors <- functional <- {algorithms.base, datamodules.base} <- concrete files`.

Callbacks and strategies know the two base contracts alone; only the command line knows everything.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import flightning
from flightning.verbs import VERBS

ROOT = Path(flightning.__file__).parent
MODULES = sorted(
    ".".join(("flightning", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    for path in ROOT.rglob("*.py")
)

#: Modules that make up the two contracts: `base` and what it is made of.
CONTRACTS = {
    "algorithms": {"base", "client", "composition", "evaluation", "local_logs", "observe", "shared_metrics", "state",
                   "stored_states", "view"},
    "datamodules": {"base", "in_memory", "loaders", "local_tests", "partitioners", "skews", "settings", "sources",
                    "stream", "transforms", "view"},
}  # fmt: skip

#: Heavy or optional packages: imported by the function that needs them, so that starting up stays quick.
LAZY = {"matplotlib", "sklearn", "scipy", "wandb", "datasets", "torchvision", "pandas", "transformers", "pyarrow"}


#: Distributions that are not called like their module.
DISTRIBUTIONS = {
    "PIL": "pillow",
    "lightning_utilities": "lightning-utilities",
    "sklearn": "scikit-learn",
    "wandb_workspaces": "wandb-workspaces",
    "yaml": "PyYAML",
}

#: What only its own users install; the message of its absence says so.
OF_THE_USER = {"flwr_datasets", "google", "transformers"}


def path_of(module):
    path = ROOT.parent.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imports_of(module, top_level_only=False):
    """Names of the modules that a module imports; those for type checkers alone are left out."""
    tree = ast.parse(path_of(module).read_text())
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    for_types = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    found = set()
    for node in nodes:
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{module} uses a relative import"
            named = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in named}
    return found


def own(module):
    return {name for name in imports_of(module) if name.split(".")[0] == "flightning"}


def part(module):
    return [*module.split("."), ""][1]


def in_contract(module):
    names = module.split(".")
    return len(names) > 2 and names[2] in CONTRACTS.get(names[1], ())


def check(module, allowed, why):
    wrong = sorted(name for name in own(module) if not allowed(name))
    assert not wrong, f"`{module}` imports {wrong}: {why}"


@pytest.mark.parametrize("module", MODULES)
def test_nobody_imports_the_command_line(module):
    # the other verbs are parts of the command line: they start runs with it
    if part(module) not in ("cli", "__main__", "verbs", *VERBS):
        check(module, lambda name: part(name) not in ("cli", "__main__"), "only the command line knows everything")


def test_errors_import_nothing_of_ours():
    assert own("flightning.errors") == set()


@pytest.mark.parametrize("module", [m for m in MODULES if part(m) == "functional"])
def test_functional_is_pure(module):
    check(module, lambda name: part(name) in ("errors", "functional"), "functions know no Lightning and no contract")
    frameworks = {name.split(".")[0] for name in imports_of(module)} & {"lightning", "pytorch_lightning"}
    assert not frameworks, f"`{module}` imports {frameworks}"


@pytest.mark.parametrize("module", [m for m in MODULES if part(m) in ("algorithms", "datamodules")])
def test_algorithms_and_data_do_not_know_each_other_or_callbacks(module):
    others = {"algorithms": "datamodules", "datamodules": "algorithms"}
    forbidden = {others[part(module)], "callbacks", "strategies", "loggers", "report", "compare"}
    check(module, lambda name: part(name) not in forbidden, "both sides meet in the round engine alone")


@pytest.mark.parametrize("module", [m for m in MODULES if in_contract(m)])
def test_contracts_do_not_import_what_stands_on_them(module):
    same = part(module)
    check(module, lambda name: part(name) != same or in_contract(name), "concrete files stand on the contract")


@pytest.mark.parametrize("module", [m for m in MODULES if part(m) in ("callbacks", "strategies")])
def test_callbacks_and_strategies_know_the_base_contracts_alone(module):
    check(
        module,
        lambda name: part(name) not in ("algorithms", "datamodules") or in_contract(name),
        "they must work with every algorithm and all data",
    )


@pytest.mark.parametrize("module", [m for m in MODULES if part(m) == "nets"])
def test_nets_know_no_federation(module):
    check(module, lambda name: part(name) in ("nets", "errors", "functional"), "a network is only a network")


@pytest.mark.parametrize("module", MODULES)
def test_heavy_packages_are_imported_where_they_are_needed(module):
    heavy = {name.split(".")[0] for name in imports_of(module, top_level_only=True)} & LAZY
    assert not heavy, f"`{module}` imports {heavy} at its top: import them inside the function that needs them"


def test_each_package_that_is_imported_is_declared():
    declared = set(re.findall(r'"([\w-]+)(?:\[\w+\])?>=', (ROOT.parent / "pyproject.toml").read_text()))
    imported = {name.split(".")[0] for module in MODULES for name in imports_of(module)}
    foreign = imported - sys.stdlib_module_names - OF_THE_USER - {"flightning"}
    assert {DISTRIBUTIONS.get(name, name) for name in foreign} <= declared


def test_names_at_the_top_are_imported_when_they_are_asked_for():
    code = (
        "import sys, flightning; assert 'torch' not in sys.modules; from flightning import Federation; "
        "assert Federation.__module__ == 'flightning.callbacks.federation'"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", flightning.__all__)
def test_names_at_the_top_exist(name):
    assert name in dir(flightning)
    assert getattr(flightning, name) is not None


def test_a_name_that_is_not_at_the_top_is_no_attribute():
    with pytest.raises(AttributeError, match="module `flightning` has no attribute `FedAvg`"):
        flightning.FedAvg  # noqa: B018


def test_the_test_sees_an_upward_arrow(tmp_path, monkeypatch):
    (tmp_path / "bad.py").write_text("from flightning.callbacks import Federation\nimport flightning.cli\n")
    monkeypatch.setattr("tests.test_imports.path_of", lambda module: tmp_path / "bad.py")
    assert own("flightning.functional.bad") == {"flightning.callbacks", "flightning.cli"}
    with pytest.raises(AssertionError, match="functions know no Lightning"):
        test_functional_is_pure("flightning.functional.bad")


def test_no_dumping_grounds():
    forbidden = {"utils", "misc", "helpers", "common"}
    assert not [m for m in MODULES if m.rsplit(".", 1)[-1] in forbidden]
