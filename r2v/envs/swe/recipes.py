"""Recipes that build the bundled instances from source distributions of PyPI.

A recipe has the right patch, whose reverse creates the bug; the test files, which are removed from the repository and
restored for grading; and the tests that the bug breaks. `benchmarks/swebench_set.py` wrote the recipes: it drew a line
and a change by (package, seed) and kept those with tests that fail before the patch and pass after it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from r2v.envs.swe.repositories import git

RECIPES = Path(__file__).with_name("recipes.jsonl")
SWE_LOCKS = Path(__file__).with_name("requirements")
_CLOCK = {
    f"GIT_{role}_{name}": value
    for role in ("AUTHOR", "COMMITTER")
    for name, value in (("NAME", "r2v"), ("EMAIL", "r2v@localhost"), ("DATE", "2020-09-13T12:26:40Z"))
}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Recipe of one instance. `kind` is the kind of bug, `seed` the seed of its draw."""

    instance_id: str
    package: str
    version: str
    kind: str
    seed: int
    base_commit: str
    split: str
    problem_statement: str
    patch: str
    tests: tuple[str, ...]
    FAIL_TO_PASS: tuple[str, ...]
    PASS_TO_PASS: tuple[str, ...]


def recipes() -> list[Recipe]:
    """Return all recipes in order."""
    return [recipe_of(json.loads(line)) for line in RECIPES.read_text().splitlines()]


def recipe_of(record: dict[str, Any]) -> Recipe:
    """Return the recipe of a parsed line."""
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in record.items()
    }
    return Recipe(**values)


def line_of(recipe: Recipe) -> str:
    """Return a recipe as a line of JSON."""
    return json.dumps(asdict(recipe), ensure_ascii=False)


def commit(tree: Path, message: str) -> str:
    """Commit a work tree and return the hash, a function of content, message and parent only."""
    git(["add", "--all", "--force"], tree)
    git(["commit", "--quiet", "--allow-empty", "--message", message], tree, **_CLOCK)
    return git(["rev-parse", "HEAD"], tree).strip()


def put_bug(tree: Path, recipe: Recipe, source: str) -> str:
    """Commit a recipe's base tree on top of the source commit, with the bug and without its tests; return the hash."""
    git(["checkout", "--quiet", "--detach", source], tree)
    patch = tree / ".git" / "right.patch"
    patch.write_text(recipe.patch)
    git(["apply", "--reverse", str(patch)], tree)
    for name in recipe.tests:
        Path(tree, name).unlink()
    base = commit(tree, recipe.instance_id)
    git(["branch", "--force", recipe.instance_id, base], tree)
    return base


def added(tree: Path, names: Sequence[str], source: str) -> str:
    """Return the patch that restores files of the source commit."""
    shown = [git(["show", f"{source}:{name}"], tree) for name in names]
    return "".join(_new_file(name, text) for name, text in zip(names, shown, strict=True))


def _new_file(name: str, text: str) -> str:
    lines = text.splitlines(keepends=True)
    head = (
        f"diff --git a/{name} b/{name}\nnew file mode 100644\n--- /dev/null\n+++ b/{name}\n@@ -0,0 +1,{len(lines)} @@\n"
    )
    end = "" if not lines or lines[-1].endswith("\n") else "\n\\ No newline at end of file\n"
    return head + "".join(f"+{line}" for line in lines) + end


def evaluation(tests: Sequence[str], test_patch: str) -> str:
    """Return the evaluation script: it restores the tests and runs them between swebench's marks."""
    names = " ".join(f"'{PurePosixPath(name)}'" for name in tests)
    return "\n".join(
        [
            "cd /testbed",
            f"rm -rf {names}",
            "git apply --verbose - <<'END_OF_TEST_PATCH'",
            test_patch.rstrip("\n"),
            "END_OF_TEST_PATCH",
            ": '>>>>> Start Test Output'",
            f"python -m pytest -rA {names}",
            ": '>>>>> End Test Output'",
        ]
    )


def record_of(recipe: Recipe, repository: str, test_patch: str) -> dict[str, Any]:
    """Return an instance in SWE-bench's format."""
    return {
        "instance_id": recipe.instance_id,
        "repo": repository,
        "version": recipe.version,
        "base_commit": recipe.base_commit,
        "problem_statement": recipe.problem_statement,
        "hints_text": "",
        "created_at": "2020-09-13T12:26:40Z",
        "patch": recipe.patch,
        "test_patch": test_patch,
        "FAIL_TO_PASS": list(recipe.FAIL_TO_PASS),
        "PASS_TO_PASS": list(recipe.PASS_TO_PASS),
        "image": "",
        "eval_script": evaluation(recipe.tests, test_patch),
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
        "split": recipe.split,
    }
