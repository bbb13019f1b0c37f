"""No test depends on how fast the machine is: none fails because it is slow."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import hypothesis

TESTS = Path(__file__).parent
CLOCK = re.compile(r"time\.(time|monotonic|perf_counter|process_time|thread_time)(_ns)?\(\)")


def sources() -> Iterator[tuple[str, str]]:
    """Yield name and text of every file of tests except this one."""
    for path in sorted(TESTS.rglob("*.py")):
        if path != Path(__file__):
            yield path.relative_to(TESTS).as_posix(), path.read_text()


def is_duration(node: ast.AST) -> bool:
    """True if an expression is the difference of two clock readings."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and bool(CLOCK.search(ast.unparse(node.left)))


def asserted_durations(text: str) -> Iterator[int]:
    """Yield the lines of assertions on a duration, or on a name bound to one."""
    if not CLOCK.search(text):
        return
    tree = ast.parse(text)
    names = {
        ast.unparse(target)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and any(map(is_duration, ast.walk(node.value)))
        for target in node.targets
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and any(
            is_duration(part) or ast.unparse(part) in names for part in ast.walk(node.test)
        ):
            yield node.lineno


def test_hypothesis_has_no_deadline_and_no_test_sets_one() -> None:
    assert hypothesis.settings().deadline is None
    assert [name for name, text in sources() if re.search(r"\bdeadline=|register_profile", text)] == ["conftest.py"]


def test_no_test_asserts_a_duration() -> None:
    example = "began = time.time()\ntook = time.monotonic() - began\nassert took < 1\nassert time.time() - began < 2"
    assert sorted(asserted_durations(example)) == [3, 4]
    assert [f"{name}:{line}" for name, text in sources() for line in asserted_durations(text)] == []
