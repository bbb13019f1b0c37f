"""The package keeps its shape: its folders, the size of its files, its imports, and tests that mirror it."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "r2v"
MODULES = sorted(path for path in PACKAGE.rglob("*.py"))
NAMES = [path.relative_to(PACKAGE).as_posix() for path in MODULES]
PATHS = set(NAMES)

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
    "library",
    "llm",
    "memory",
    "perturb",
    "pipeline",
    "policy",
    "report",
    "rollout",
    "router",
    "sandbox",
    "serve",
    "slurm",
    "stages",
    "storage",
    "utils",
    "verifier",
    "wire",
}
DRAWERS = {"common", "core", "helpers", "misc", "util", "lib", "shared"}
"""Folder names that say nothing about their contents."""
LONGEST = 500
"""Lines of a module: room for one table or one algorithm, not for a second subject."""


@cache
def tree(name: str) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse((PACKAGE / name).read_text())


def test_the_rooms_are_those_of_the_drawing() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages == ROOMS
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
    assert [name for name in NAMES if DRAWERS.intersection(Path(name).with_suffix("").parts)] == []
    assert {path.name for path in (PACKAGE / "utils").glob("*.py")} <= {"__init__.py", "results.py"}


def complaints(name: str) -> Iterator[str]:
    """Yield each way in which a module is hard to read."""
    text = (PACKAGE / name).read_text()
    if not ast.get_docstring(tree(name)):
        yield f"{name}: no docstring"
    if (length := len(text.splitlines())) > LONGEST:
        yield f"{name}: {length} lines, at most {LONGEST}"
    defines = any(isinstance(node, (ast.FunctionDef, ast.ClassDef)) for node in tree(name).body)
    if defines and "from __future__ import annotations" not in text:
        yield f"{name}: no import of annotations"
    for node in tree(name).body:
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "__all__"
            and isinstance(node.value, ast.List)
        ):
            exported = list(ast.literal_eval(node.value))
            if exported not in (sorted(exported), sorted(exported, key=lambda n: (not n.isupper(), n))):
                yield f"{name}: __all__ is not sorted"


def test_every_module_says_what_it_is_and_stays_readable() -> None:
    assert [line for name in NAMES for line in complaints(name)] == []


def public(module: ast.Module) -> list[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the public classes and functions of a module."""
    return [
        node
        for node in module.body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_")
    ]


def test_everything_public_has_a_docstring() -> None:
    bare = [f"{name}:{node.name}" for name in NAMES for node in public(tree(name)) if not ast.get_docstring(node)]
    assert bare == []


def test_functions_are_short() -> None:
    lengths = [
        (node.end_lineno or 0) - node.lineno + 1
        for name in NAMES
        for node in ast.walk(tree(name))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    assert sorted(lengths)[len(lengths) // 2] <= 12
    assert sum(length > 50 for length in lengths) <= len(lengths) // 100


def test_packages_do_nothing_when_they_are_imported() -> None:
    for name in NAMES:
        if Path(name).name == "__init__.py":
            kinds = {
                type(node)
                for node in tree(name).body
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
    """tests/<room>/<inner room>/test_<module>.py: the full path names an existing module or inner room."""
    stray = [
        path.relative_to(REPOSITORY).as_posix()
        for room in ROOMS
        for path in (REPOSITORY / "tests" / room).rglob("test_*.py")
        if not (mirrored(path).with_suffix(".py").is_file() or mirrored(path).is_dir())
    ]
    assert [name for name in stray if name not in MIXED] == []


def mirrored(test: Path) -> Path:
    """Return the path in the package that a test file mirrors, without a suffix."""
    return PACKAGE / test.relative_to(REPOSITORY / "tests").parent / test.stem.removeprefix("test_")


MIXED = {
    "tests/cli/game/test_scripts.py",
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
    "tests/slurm/test_drill_environment.py",
    "tests/slurm/test_drill_faults.py",
    "tests/slurm/test_drill_heal.py",
    "tests/slurm/test_drill_helpers.py",
    "tests/slurm/test_drill_nodes.py",
    "tests/slurm/test_drill_shared.py",
    "tests/slurm/test_drill_submit.py",
    "tests/slurm/test_drill_sweeps.py",
    "tests/slurm/test_drill_swebench.py",
    "tests/slurm/test_drill_teacher.py",
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
"""Tests of several modules together."""


def ignored(*paths: str) -> list[str]:
    """Return the paths that git ignores."""
    command, names = ["git", "check-ignore", "--no-index", "--stdin"], "\n".join(paths)
    return subprocess.run(command, cwd=REPOSITORY, input=names, capture_output=True, text=True).stdout.split()


@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="not a checkout")
def test_git_ignores_results_and_no_source() -> None:
    """An ignore of data/ without its leading slash would hide r2v/data."""
    assert ignored(*(path.relative_to(REPOSITORY).as_posix() for path in MODULES)) == []
    outputs = ["data/runs/x/trajectories.jsonl", "outputs/.artifacts/x", "results/mrp", "logs/x.out", ".venv"]
    assert ignored(*outputs) == outputs
    source = ["data/.gitkeep", "tests/data/test_x.py", "configs/desk/noisy.yaml", "r2v/bundled/weights/tiny/x"]
    assert ignored(*source) == []


def test_no_line_of_the_package_swears_at_its_reader() -> None:
    """Unfinished code is not shipped: no TODO, FIXME or NotImplementedError."""
    markers = [
        f"{path.name}:{number}"
        for path in MODULES
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if re.search(r"\b(TODO|FIXME|XXX|HACK)\b|NotImplementedError", line)
    ]
    assert markers == []


def test_only_wire_and_atif_write_the_words_of_tool_calls() -> None:
    """One package reads and writes the three formats; a second reader elsewhere would drift from it."""
    words = re.compile("[\"'](tool_calls|tool_use|function_call)[\"']")
    readers = [name for name in NAMES if not name.startswith("wire/") and words.search((PACKAGE / name).read_text())]
    assert readers == ["data/interchange/atif.py"]


def imported(name: str, *, anywhere: bool = False) -> set[str]:
    """Return the modules of the package that a module imports, as paths like those of NAMES: at its own import, or
    `anywhere`, for types only and inside functions too."""
    statements: list[ast.AST] = list(ast.walk(tree(name))) if anywhere else list(tree(name).body)
    modules: set[str] = set()
    for node in statements:
        if isinstance(node, ast.If) and not anywhere and ast.unparse(node.test) != "TYPE_CHECKING":
            statements += node.body
        if not anywhere:
            statements += node.orelse if isinstance(node, ast.If) else node.body if isinstance(node, ast.Try) else []
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    stems = {module.removeprefix("r2v.").replace(".", "/") for module in modules if module.startswith("r2v.")}
    return {path for stem in stems for path in (f"{stem}.py", f"{stem}/__init__.py") if path in PATHS} - {name}


KNOWN_CYCLES: list[set[str]] = []
"""Modules that import each other, for types only or inside functions. The list may only get shorter."""


def cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the strongly connected components of more than one module."""
    while ends := {name for name, targets in graph.items() if not targets & graph.keys()}:
        graph = {name: targets for name, targets in graph.items() if name not in ends}

    def reached(name: str) -> set[str]:
        seen: set[str] = set()
        todo = [name]
        while todo:
            fresh = (graph[todo.pop()] & graph.keys()) - seen
            seen |= fresh
            todo += fresh
        return seen

    reach = {name: reached(name) for name in graph}
    groups = {frozenset(to for to in reach[name] if name in reach[to]) for name in graph if name in reach[name]}
    return [set(group) for group in groups]


def test_no_modules_import_each_other_but_the_known_cycles() -> None:
    """Imports for types only and inside functions count. A package's `__init__` collects its own modules, which import
    each other without it."""
    graph = {
        name: {to for to in imported(name, anywhere=True) if Path(to).name != "__init__.py"}
        for name in NAMES
        if Path(name).name != "__init__.py"
    }
    assert sorted(map(sorted, cycles(graph))) == sorted(map(sorted, KNOWN_CYCLES))


def test_a_cycle_is_seen_wherever_it_runs() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == [{"b", "c"}]
    assert cycles({"a": {"b"}, "b": {"c"}, "c": set()}) == []


SMALL = 40
"""Lines: a module below it with a single importer belongs inside that one."""


def small_with_one_importer(importers: dict[str, set[str]], lengths: dict[str, int]) -> set[str]:
    """Return the short modules that exactly one other imports. A module without an importer is a program, or is named
    in a table by its dotted name; each category of perturbations has one importer."""
    return {
        name
        for name, readers in importers.items()
        if lengths[name] < SMALL and len(readers) == 1 and not name.startswith("perturb/categories/")
    }


def test_small_modules_have_several_importers_or_are_part_of_theirs() -> None:
    """Imports for types only and inside functions count."""
    importers: dict[str, set[str]] = {name: set() for name in NAMES if Path(name).name != "__init__.py"}
    for name in NAMES:
        for to in imported(name, anywhere=True) & importers.keys():
            importers[to].add(name)
    lengths = {name: len((PACKAGE / name).read_text().splitlines()) for name in importers}
    assert small_with_one_importer(importers, lengths) == set()


def test_a_small_module_is_told_from_a_program_and_a_long_one() -> None:
    importers = {"a": {"b"}, "b": set[str](), "c": {"a", "b"}, "d": {"a"}}
    assert small_with_one_importer(importers, {"a": 39, "b": 5, "c": 9, "d": 40}) == {"a"}


@pytest.mark.parametrize(("depth", "anywhere"), [(1, True), (2, False)])
def test_no_rooms_import_each_other_in_a_circle(depth: int, anywhere: bool) -> None:
    """Each folder, whatever it imports where; and each folder within one, as modules are imported."""

    def room(name: str) -> str:
        return "/".join(Path(name).with_suffix("").parts[:depth])

    graph: dict[str, set[str]] = {}
    for name in NAMES:
        if len(Path(name).parts) > depth or Path(name).name != "__init__.py":
            graph.setdefault(room(name), set()).update(
                room(to)
                for to in imported(name, anywhere=anywhere)
                if Path(to).name != "__init__.py" or len(Path(to).parts) > depth
            )
    for name, targets in graph.items():
        targets.discard(name)
    assert cycles(graph) == []


def test_the_rooms_can_be_counted() -> None:
    """Few enough to know them all."""
    rooms = {path.parent.relative_to(PACKAGE) for path in PACKAGE.glob("*/__init__.py")}
    inner = {path.parent.relative_to(PACKAGE) for path in PACKAGE.glob("*/*/__init__.py")}
    assert len(rooms) <= 27 and len(inner) <= 54


def test_what_the_quick_tier_leaves_out_is_there() -> None:
    """tests/slow.txt names files, and functions in them."""
    lines = (REPOSITORY / "tests" / "slow.txt").read_text().split()
    assert lines == sorted(set(lines))
    for path, _, function in (line.partition("::") for line in lines):
        assert not function or f"def {function}(" in (REPOSITORY / path).read_text(), f"{path}::{function}"
