"""Make the recipes of the bundled SWE-bench instances: real packages, bugs drawn by seed, each shown to break tests.

    python benchmarks/swebench_set.py            # writes r2v/envs/swe/recipes.jsonl; some minutes

Candidates are positions in a package's own modules, in an order drawn by (package, seed). A candidate is kept if some
tests of one file fail with it and pass without it, and every file can be collected. The problem statement is made from
the first failure. `r2v swebench install` makes the instances of the recipes again, on any machine.
"""

from __future__ import annotations

import argparse
import ast
import base64
import difflib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from r2v.envs.swe.grading import official_grading
from r2v.envs.swe.home import swebench_home
from r2v.envs.swe.install import REPOSITORIES_MARKER, _into, begin, fetch
from r2v.envs.swe.recipes import RECIPES, SWE_LOCKS, Recipe, line_of, put_bug, recipes
from r2v.envs.swe.repositories import git, laid_out
from r2v.envs.swe.shells import BubblewrapShell
from r2v.randomness import generator
from r2v.storage.removal import make_own

SPLITS = ("train", "train", "calibration", "evaluation")
"""Of a package's instances, in turn."""
NOT_OURS = {"tests", "test", "docs", "sandbox", "setup", "conftest", "versioneer", "_version", "_compat"}
"""Folders and modules that are not the package's own code."""
MOST_FAILING, MOST_PASSING = 12, 20
COMPARISONS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="}
COMPARISONS |= {ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in"}
ARITHMETIC = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*", ast.Mod: "//"}


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """One change of one line: the text at its columns, and the replacement."""

    kind: str
    line: int
    start: int
    end: int
    text: str
    name: str
    """The function that it is in."""


def mutations(source: str) -> list[Mutation]:
    """Return all changes that may be made to a module's functions."""
    tree = ast.parse(source)
    changes: list[Mutation] = []
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            child.parent = node  # type: ignore[attr-defined]
    for node in ast.walk(tree):
        name = _function(node)
        if name is not None:
            changes += [replace(change, name=name) for change in _of(node, source)]
    return sorted(set(changes), key=lambda change: (change.line, change.start, change.kind))


def _function(node: ast.AST) -> str | None:
    names: list[str] = []
    while (node := getattr(node, "parent", None)) is not None:  # type: ignore[assignment]
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.insert(0, node.name)
    return ".".join(names) if names else None


def _of(node: ast.AST, source: str) -> Iterator[Mutation]:
    """Yield the changes that a node of the tree offers."""
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in COMPARISONS:
            yield from _between("comparison", left, right, f" {COMPARISONS[type(operator)]} ")
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in ARITHMETIC:
            yield from _between("arithmetic", left, right, f" {ARITHMETIC[type(operator)]} ")
        case ast.BoolOp(op=operator, values=[left, right]):
            yield from _between("boolean", left, right, " or " if isinstance(operator, ast.And) else " and ")
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from _whole("negation", node, ast.get_source_segment(source, operand))
        case ast.Constant(value=int() as value) if type(value) is int and 0 <= value < 100:
            yield from _whole("off by one", node, str(value + 1))
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield from _whole("lost result", value, "None")
        case ast.Call(args=[first, second], keywords=[]) if first.lineno == second.end_lineno:
            texts = [ast.get_source_segment(source, operand) or "" for operand in (second, first)]
            if not any(isinstance(operand, ast.Starred) for operand in (first, second)):
                yield _mutation(
                    "swapped arguments", first.lineno, first.col_offset, second.end_col_offset, ", ".join(texts)
                )
        case ast.AugAssign() | ast.Expr(value=ast.Call()):
            yield from _whole("lost statement", node, "pass")


def _between(kind: str, left: ast.expr, right: ast.expr, text: str) -> Iterator[Mutation]:
    if left.end_lineno == right.lineno:
        yield _mutation(kind, right.lineno, left.end_col_offset, right.col_offset, text)


def _whole(kind: str, node: Any, text: str | None) -> Iterator[Mutation]:
    if node.lineno == node.end_lineno and text:
        yield _mutation(kind, node.lineno, node.col_offset, node.end_col_offset, text)


def _mutation(kind: str, line: int, start: int | None, end: int | None, text: str) -> Mutation:
    return Mutation(kind=kind, line=line, start=start or 0, end=end or 0, text=text, name="")


def applied(source: str, change: Mutation) -> str | None:
    """Return the module with the change; None if it changes nothing or is invalid Python."""
    lines = source.splitlines(keepends=True)
    line = lines[change.line - 1].encode()
    gap = line[change.start : change.end].decode()
    if "(" in gap and change.kind in ("comparison", "arithmetic", "boolean"):
        return None
    lines[change.line - 1] = (line[: change.start] + change.text.encode() + line[change.end :]).decode()
    changed = "".join(lines)
    try:
        ast.parse(changed)
    except SyntaxError:
        return None
    return changed if changed != source else None


def modules(tree: Path) -> list[str]:
    """Return the package's own modules, without tests, documentation and installation scripts."""
    names = []
    for path in sorted(tree.rglob("*.py")):
        inner = path.relative_to(tree)
        parts = {part.lower() for part in inner.with_suffix("").parts}
        if not parts & NOT_OURS and not inner.name.startswith(("test_", "__main", "__about")):
            names.append(str(inner))
    return names


def statuses(shell: BubblewrapShell, tests: str = "") -> tuple[dict[str, str], str]:
    """Return test -> status, by swebench's own parser of the log."""
    done = shell.execute({"command": f"python -m pytest -rA -q {tests} --maxfail=80"}, timeout=60)
    if done["returncode"] not in (0, 1):
        return {}, ""
    parse = official_grading().PARSER_REGISTRY["parse_log_pytest"]
    return {name: status for name, status in parse(done["output"], None).items() if _whole_name(name)}, done["output"]


def _whole_name(name: str) -> bool:
    """True if it names a whole test: swebench's parser cuts one whose parameters hold a space."""
    return "::" in name and name.count("[") == name.count("]")


def failing(before: dict[str, str], after: dict[str, str]) -> dict[str, list[str]]:
    """Return file -> its tests that passed without the change and do not with it."""
    files: dict[str, list[str]] = {}
    for name, status in before.items():
        if status == "PASSED" and after.get(name) == "FAILED":
            files.setdefault(name.partition("::")[0], []).append(name)
    return files


def statement(package: str, version: str, module: str, change: Mutation, output: str, test: str) -> str:
    """Return the problem statement: the version, and the first failure."""
    where = ".".join(PurePosixPath(module).with_suffix("").parts).removeprefix("src.").removesuffix(".__init__")
    head = f"_ {test.rpartition('::')[2]} _"
    rest = output.partition(head)[2] or output
    seen = next((row[1:].strip() for row in rest.splitlines() if row.startswith("E  ")), "a wrong result")
    check = test.rpartition("::")[2].partition("[")[0]
    return (
        f"{package} {version}: {where}.{change.name} misbehaves\n\n"
        f"Since the last change, what goes through `{change.name}` (module {where}) no longer does what its "
        f"documentation says. One of our own checks, {check}, now ends with\n\n    {seen}\n\n"
        "Please find the cause and mend it, without changing what else the package offers."
    )


def made_of(package: str, version: str, archive: Path, count: int, folder: Path) -> Iterator[Recipe]:
    """Yield the recipes of one package, of different kinds as far as possible."""
    tree = make_own(folder, REPOSITORIES_MARKER) / package
    source = begin(tree, archive)
    home = laid_out(tree, source)
    site = swebench_home() / "site"
    before, _ = statuses(BubblewrapShell(home, site, timeout=60))
    places = [(module, change) for module in modules(tree) for change in mutations((tree / module).read_text())]
    draw = generator("swebench-set", package)
    draw.shuffle(places)
    used: set[str] = set()
    count_made = 0
    for seed, (module, change) in enumerate(places):
        if count_made == count:
            return
        if change.kind in used:
            continue
        text = (tree / module).read_text()
        mutant = applied(text, change)
        if mutant is None:
            continue
        shell = BubblewrapShell(home, site, timeout=60)
        encoded = base64.b64encode(mutant.encode()).decode()
        for at in range(0, len(encoded), 80_000):
            piece, sign = encoded[at : at + 80_000], ">>" if at else ">"
            shell.execute({"command": f"printf %s '{piece}' | base64 -d {sign} '{module}'"})
        after, output = statuses(shell)
        files = failing(before, after)
        if not files:
            continue
        file, failed = max(files.items(), key=lambda item: len(item[1]))
        passing = [
            name for name in before if name.startswith(f"{file}::") and after.get(name) == before[name] == "PASSED"
        ]
        if len(failed) > MOST_FAILING or len(passing) < 2 or len(after) < len(before) / 2:
            continue
        kinds = set(used) | {change.kind}
        used = kinds if len(kinds) < 8 else set()
        diff = difflib.unified_diff(
            mutant.splitlines(keepends=True), text.splitlines(keepends=True), f"a/{module}", f"b/{module}", n=2
        )
        recipe = Recipe(
            instance_id=f"{package}__{package}-{seed}",
            package=package,
            version=version,
            kind=change.kind,
            seed=seed,
            base_commit="",
            split=SPLITS[count_made % len(SPLITS)],
            problem_statement=statement(package, version, module, change, output, failed[0]),
            patch=f"diff --git a/{module} b/{module}\n" + "".join(diff),
            tests=(file,),
            FAIL_TO_PASS=tuple(failed),
            PASS_TO_PASS=tuple(sorted(draw.sample(passing, min(MOST_PASSING, len(passing))))),
        )
        count_made += 1
        print(
            f"{recipe.instance_id} {change.kind}: {module} {change.name}, {len(failed)} fail, {len(passing)} pass",
            flush=True,
        )
        yield replace(recipe, base_commit=put_bug(tree, recipe, source))
        git(["checkout", "--quiet", "--detach", source], tree)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--packages", nargs="*", default=[], help="only these; recipes of others are kept (default: all)"
    )
    parser.add_argument("--output", type=Path, default=RECIPES, help=f"file to write (default: {RECIPES.name})")
    parser.add_argument("--each", type=int, default=4, help="instances of a package (default: 4)")
    arguments = parser.parse_args(words)
    for name in ("site", "grading"):
        if not (swebench_home() / name).is_dir():
            _into(swebench_home() / name, SWE_LOCKS / f"{name}.txt")
    lines = [line for line in (SWE_LOCKS / "sources.txt").read_text().splitlines() if "==" in line]
    packages = [tuple(line.split()[0].split("==")) for line in lines]
    chosen = arguments.packages or [name for name, _ in packages]
    there = recipes() if arguments.output == RECIPES and RECIPES.exists() else []
    kept_recipes = [recipe for recipe in there if recipe.package not in chosen]
    with tempfile.TemporaryDirectory() as folder:
        fetch(Path(folder))
        for name, version in packages:
            if name in chosen:
                archive = Path(folder, f"{name}-{version}.tar.gz")
                for recipe in made_of(name, version, archive, arguments.each, Path(folder, "trees")):
                    kept_recipes = sorted([*kept_recipes, recipe], key=lambda entry: (entry.package, entry.seed))
                    arguments.output.write_text("".join(f"{line_of(entry)}\n" for entry in kept_recipes))
    print(
        f"{len(kept_recipes)} recipes, {len({recipe.package for recipe in kept_recipes})} packages, "
        f"{len({recipe.kind for recipe in kept_recipes})} kinds"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
