"""The package keeps its shape: its rooms, the size of its files, what may import what, and tests that mirror it."""

from __future__ import annotations

import ast
import re
import subprocess
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "r2v"
MODULES = sorted(path for path in PACKAGE.rglob("*.py"))
TREES = {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text()) for path in MODULES}

ROOMS = {
    "bundled",
    "cli",
    "config",
    "data",
    "emulator",
    "envs",
    "evaluation",
    "experiments",
    "game",
    "hrl",
    "llm",
    "memory",
    "perturb",
    "pipeline",
    "policy",
    "report",
    "rollout",
    "router",
    "sandbox",
    "slurm",
    "stages",
    "storage",
    "utils",
    "verifier",
}
DRAWERS = {"common", "core", "helpers", "misc", "util", "lib", "shared"}
"""Names that say nothing of what is inside."""
LONGEST = 320


def test_the_rooms_are_those_of_the_drawing() -> None:
    found = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert found == ROOMS
    assert {path.name for path in REPOSITORY.iterdir() if path.is_dir() and not path.name.startswith(".")} >= {
        "r2v",
        "configs",
        "scripts",
        "benchmarks",
        "data",
        "outputs",
        "results",
        "logs",
        "docs",
        "tests",
    }


def test_no_drawer_for_what_found_no_place() -> None:
    assert [name for name in TREES if DRAWERS.intersection(Path(name).with_suffix("").parts)] == []
    assert {path.name for path in (PACKAGE / "utils").glob("*.py")} <= {"__init__.py", "results.py"}


@pytest.mark.parametrize("name", TREES)
def test_a_module_says_what_it_is_and_stays_readable(name: str) -> None:
    tree, text = TREES[name], (PACKAGE / name).read_text()
    assert ast.get_docstring(tree), "no docstring"
    assert len(text.splitlines()) <= LONGEST
    if any(isinstance(node, (ast.FunctionDef, ast.ClassDef)) for node in tree.body):
        assert "from __future__ import annotations" in text
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            exported = ast.literal_eval(node.value)
            assert list(exported) in (sorted(exported), sorted(exported, key=lambda n: (not n.isupper(), n)))


def public(tree: ast.Module) -> list[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """The classes and functions of a module that others may use."""
    return [
        node
        for node in tree.body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_")
    ]


def test_everything_public_has_a_docstring() -> None:
    bare = [
        f"{name}:{node.name}" for name, tree in TREES.items() for node in public(tree) if not ast.get_docstring(node)
    ]
    assert bare == []


def test_functions_are_short() -> None:
    lengths = [
        (node.end_lineno or 0) - node.lineno + 1
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    assert sorted(lengths)[len(lengths) // 2] <= 12
    assert sum(length > 50 for length in lengths) <= len(lengths) // 100


def test_packages_do_nothing_when_they_are_imported() -> None:
    for name, tree in TREES.items():
        if Path(name).name == "__init__.py":
            kinds = {
                type(node)
                for node in tree.body
                if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
            }
            assert kinds <= {
                ast.Expr,
                ast.Import,
                ast.ImportFrom,
                ast.Assign,
                ast.AnnAssign,
                ast.FunctionDef,
                ast.ClassDef,
            }, name


def test_tests_mirror_the_package() -> None:
    """tests/<room>/<inner room>/test_<module>.py: the full path names a module, or an inner room, that is there."""
    stray = [
        path.relative_to(REPOSITORY).as_posix()
        for room in ROOMS
        for path in (REPOSITORY / "tests" / room).rglob("test_*.py")
        if not (mirrored(path).with_suffix(".py").is_file() or mirrored(path).is_dir())
    ]
    assert [name for name in stray if name not in MIXED] == []


def mirrored(test: Path) -> Path:
    """Where in the package what a test file is named after stands, without a suffix."""
    return PACKAGE / test.relative_to(REPOSITORY / "tests").parent / test.stem.removeprefix("test_")


MIXED = {
    "tests/cli/test_game_scripts.py",
    "tests/envs/browser/test_pipeline.py",
    "tests/envs/swe/test_perturbed.py",
    "tests/envs/swe/test_pipeline.py",
    "tests/envs/webarena/test_perturbed.py",
    "tests/envs/webarena/test_pipeline.py",
    "tests/hrl/test_extending.py",
    "tests/hrl/test_ranks_training.py",
    "tests/hrl/test_whole_loop.py",
    "tests/policy/test_command.py",
    "tests/policy/test_ranks.py",
    "tests/slurm/test_cluster_itself.py",
    "tests/slurm/test_drill_again.py",
    "tests/slurm/test_drill_faults.py",
    "tests/slurm/test_drill_heal.py",
    "tests/slurm/test_drill_helpers.py",
    "tests/slurm/test_drill_nodes.py",
    "tests/slurm/test_drill_shared.py",
    "tests/slurm/test_drill_submit.py",
    "tests/slurm/test_drill_sweeps.py",
    "tests/slurm/test_drill_swebench.py",
    "tests/slurm/test_drill_webarena.py",
    "tests/sandbox/test_attacks.py",
    "tests/slurm/test_scripts.py",
    "tests/slurm/test_simulator.py",
    "tests/slurm/test_sites.py",
    "tests/emulator/test_fault_batches.py",
    "tests/emulator/test_fault_calls.py",
    "tests/emulator/test_fault_lines.py",
    "tests/emulator/test_state.py",
    "tests/cli/test_provider_ends.py",
    "tests/llm/providers/spending/test_full_disk.py",
}
"""Tests of what several modules do together."""


def ignored(path: str) -> bool:
    return subprocess.run(["git", "check-ignore", "--quiet", "--no-index", path], cwd=REPOSITORY).returncode == 0


@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="not a checkout")
def test_git_ignores_results_and_no_source() -> None:
    """An ignore of data/ without its leading slash would hide r2v/data."""
    hidden = [path for path in MODULES if ignored(path.relative_to(REPOSITORY).as_posix())]
    assert hidden == []
    for path in ("data/runs/x/trajectories.jsonl", "outputs/.artifacts/x", "results/mrp", "logs/x.out", ".venv/bin"):
        assert ignored(path), path
    for path in ("data/.gitkeep", "tests/data/test_x.py", "configs/desk/noisy.yaml", "r2v/bundled/weights/tiny/x"):
        assert not ignored(path), path


def test_no_line_of_the_package_swears_at_its_reader() -> None:
    """What is unfinished is not shipped: no TODO, FIXME or NotImplementedError."""
    found = [
        f"{path.name}:{number}"
        for path in MODULES
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if re.search(r"\b(TODO|FIXME|XXX|HACK)\b|NotImplementedError", line)
    ]
    assert found == []


def imported(name: str) -> set[str]:
    """The modules of the package that a module imports when it is imported itself, as paths like those of TREES."""
    found: set[str] = set()
    statements = list(TREES[name].body)
    for node in statements:
        if isinstance(node, ast.If) and ast.unparse(node.test) != "TYPE_CHECKING":
            statements += node.body
        statements += node.orelse if isinstance(node, ast.If) else node.body if isinstance(node, ast.Try) else []
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    paths = {f"{module.removeprefix('r2v.').replace('.', '/')}" for module in found if module.startswith("r2v.")}
    return {path for stem in paths for path in (f"{stem}.py", f"{stem}/__init__.py") if path in TREES} - {name}


def circle(graph: dict[str, set[str]]) -> list[str]:
    """One circle of a graph, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_in_a_circle() -> None:
    """A package's face gathers its own modules, which import each other past it."""
    graph = {name: {to for to in imported(name) if Path(to).name != "__init__.py"} for name in TREES}
    faces = {name: kept for name, kept in graph.items() if Path(name).name != "__init__.py"}
    assert circle(faces) == []


@pytest.mark.parametrize("depth", [1, 2])
def test_no_rooms_import_each_other_in_a_circle(depth: int) -> None:
    """Each room, and each room within one, taken as a whole."""

    def room(name: str) -> str:
        return "/".join(Path(name).with_suffix("").parts[:depth])

    graph: dict[str, set[str]] = {}
    for name in TREES:
        if len(Path(name).parts) > depth or Path(name).name != "__init__.py":
            graph.setdefault(room(name), set()).update(
                room(to) for to in imported(name) if Path(to).name != "__init__.py" or len(Path(to).parts) > depth
            )
    for name, targets in graph.items():
        targets.discard(name)
    assert circle(graph) == []


def test_the_rooms_can_be_counted() -> None:
    """Few enough to know them all."""
    rooms = {path.parent.relative_to(PACKAGE) for path in PACKAGE.glob("*/__init__.py")}
    inner = {path.parent.relative_to(PACKAGE) for path in PACKAGE.glob("*/*/__init__.py")}
    assert len(rooms) <= 24 and len(inner) <= 32


def test_what_the_quick_tier_leaves_out_is_there() -> None:
    """tests/slow.txt names files, and functions in them."""
    lines = (REPOSITORY / "tests" / "slow.txt").read_text().split()
    assert lines == sorted(set(lines))
    for path, _, function in (line.partition("::") for line in lines):
        assert not function or f"def {function}(" in (REPOSITORY / path).read_text(), f"{path}::{function}"
