"""The table of file kinds is complete: each file of a run has one row, and so has each call that writes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trust.kinds import KINDS, OUTSIDE, files_of, kind_of

PACKAGE = Path(__file__).parents[2] / "r2v"
WRITING = {"write_json", "write_text", "write_lines", "replacing", "writing"}


def write_calls() -> Iterator[tuple[str, str]]:
    """Yield (module:function below r2v, line) of every call that writes a file: ours, and files opened for writing."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".")
        yield from _calls(module, ast.parse(path.read_text()), ())


def _calls(module: str, node: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call) and _writes(child):
            yield f"{module}:{'.'.join(names)}", f"{module} line {child.lineno}: {ast.unparse(child)[:80]}"
        named = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        yield from _calls(module, child, (*names, child.name) if named else names)  # type: ignore[attr-defined]


def _writes(call: ast.Call) -> bool:
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if ast.unparse(call.func) == "os.open":
        text = ast.unparse(call)
        return "os.devnull" not in text and any(flag in text for flag in ("O_WRONLY", "O_RDWR", "O_CREAT"))
    if name == "open":
        modes = [word.value for word in call.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
        return any(set(mode) & set("wax+") and set(mode) <= set("rwax+bt") for mode in modes)
    saves = name in ("save", "save_file") and ast.unparse(call.func) in ("torch.save", "save_file")
    return saves or name in WRITING | {"write_bytes"}


def test_every_file_of_a_whole_run_has_one_row(micro_run: Path) -> None:
    found = [kind.name for _, kind in files_of(micro_run)]
    assert len(found) > 150


def test_every_call_that_writes_belongs_to_a_row() -> None:
    known = {writer for row in KINDS for writer in row.writers} | OUTSIDE.keys()
    assert [line for function, line in write_calls() if function not in known] == []


def test_every_writer_in_the_table_writes() -> None:
    writing = {function for function, _ in write_calls()}
    named = {writer for row in KINDS for writer in row.writers} | OUTSIDE.keys()
    assert named - writing == set()


def test_no_two_rows_have_one_name() -> None:
    assert len({row.name for row in KINDS}) == len(KINDS)


def test_a_file_of_no_kind_is_named() -> None:
    with pytest.raises(LookupError, match=r"data/runs/x/other\.bin: no row"):
        kind_of("data/runs/x/other.bin")
