"""R2V removes a folder with its marker, and nothing else: no folder of a user's, no target of a link."""

from __future__ import annotations

import ast
import os
import signal
import stat
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from r2v.storage.removal import (
    ATTEMPT_MARKER,
    ATTEMPT_PART,
    OWN,
    TEMPORARY,
    Marker,
    NotOurs,
    adopt_temporary,
    is_own,
    make_own,
    make_own_temporary,
    remove_own,
    require_own,
)

PACKAGE = Path(__file__).parents[2] / "r2v"
REPORT = Marker(kind="report")
ENTRIES = st.recursive(
    st.sampled_from(["a file", "a read-only file", "a link to a file", "a link to a folder", "a dangling link"]),
    lambda inner: st.dictionaries(st.sampled_from(["data", "figures", "tmp", ".git", "a b"]), inner, max_size=3),
    max_leaves=6,
)
TREES = st.dictionaries(st.sampled_from(["data", "figures", "index.html", "notes.txt", ".hidden"]), ENTRIES, max_size=4)
MARKERS = ["plain", "none", "empty", "another kind", "a longer kind", "a link", "a folder", "a pipe"]
PATHS = ["folder", "link", "link in the path", "file", "dangling link", "missing"]


def fill(folder: Path, tree: Mapping[str, Any], outside: Path) -> None:
    """Make a folder with these entries; links lead outside."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, entry in tree.items():
        path = folder / name
        if isinstance(entry, dict):
            fill(path, entry, outside)
        elif "link" in entry:
            path.symlink_to({"file": outside / "thesis.tex", "folder": outside}.get(entry.split()[-1], "nowhere"))
        else:
            path.write_text(entry)
            path.chmod(0o444 if "read-only" in entry else 0o644)


def mark(folder: Path, marker: Marker, how: str, outside: Path) -> None:
    """Put the marker's file into a folder, or an object that could be taken for it."""
    path, text = folder / marker.file, f"{marker.kind}\n"
    if how == "a link":
        (outside / "marker").write_text(text)
        path.symlink_to(outside / "marker")
    elif how == "a folder":
        path.mkdir()
    elif how == "a pipe":
        os.mkfifo(path)
    elif how != "none":
        path.write_text({"plain": text, "another kind": "bundle\n", "a longer kind": "reports\n"}.get(how, ""))


def content(top: Path) -> dict[str, object]:
    """Return everything below a folder: type, permissions, and the bytes or the target of each entry."""
    held: dict[str, object] = {}
    for path in sorted(top.rglob("*")):
        mode = path.lstat().st_mode
        data = path.read_bytes() if stat.S_ISREG(mode) else path.readlink() if stat.S_ISLNK(mode) else None
        held[path.relative_to(top).as_posix()] = (mode, data)
    return held


def laid_out(top: Path, tree: Mapping[str, Any], marker: Marker, how: str, lies_as: str) -> Path:
    """Make a path to be removed below `top`, beside folders of the user's."""
    outside, path = top / "outside", top / "room" / "path"
    fill(outside, {"thesis.tex": "a file", "data": {"data": "a file"}}, outside)
    path.parent.mkdir()
    if lies_as == "file":
        path.write_text("report\n")
    elif lies_as == "dangling link":
        path.symlink_to("nowhere")
    elif lies_as != "missing":
        real = path if lies_as == "folder" else top / "real" / "path"
        fill(real, tree, outside)
        mark(real, marker, how, outside)
        if lies_as == "link":
            path.symlink_to(real)
        elif lies_as == "link in the path":
            path.parent.rmdir()
            path.parent.symlink_to(real.parent)
    return path


@given(TREES, st.sampled_from(MARKERS), st.sampled_from(PATHS))
@example({"data": {"data": "a file"}, "figures": {}}, "none", "folder")  # a paper's folder
@example({"data": "a link to a folder"}, "plain", "folder")
@example({}, "plain", "link")
def test_a_marked_folder_goes_as_a_whole_and_anything_else_stays_as_it_is(
    tree: dict[str, Any], how: str, lies_as: str
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        top = Path(scratch)
        path = laid_out(top, tree, REPORT, how, lies_as)
        before = content(top)
        # The folders above a marked one are the user's to arrange: `outputs` may be a link to another disk.
        if how == "plain" and lies_as in ("folder", "link in the path"):
            assert is_own(path, REPORT) and remove_own(path, REPORT)
            gone = "real/path" if lies_as == "link in the path" else "room/path"
            assert content(top) == {
                name: entry for name, entry in before.items() if name != gone and not name.startswith(f"{gone}/")
            }
        elif lies_as == "missing":
            assert remove_own(path, REPORT) and not is_own(path, REPORT) and content(top) == before
        else:
            with pytest.raises(NotOurs) as refused:
                remove_own(path, REPORT)
            assert len(str(refused.value).splitlines()) == 1 and str(path) in str(refused.value)
            assert "to remove it: rm " in str(refused.value)
            assert content(top) == before


@given(TREES, st.sampled_from(MARKERS), st.sampled_from(PATHS))
@example({}, "none", "folder")
def test_a_folder_is_marked_where_it_is_new_or_empty_and_nowhere_else(
    tree: dict[str, Any], how: str, lies_as: str
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        top = Path(scratch)
        path = laid_out(top, tree, REPORT, how, lies_as)
        before = content(top)
        empty = not tree and how in ("none", "empty")  # an empty marker: killed before its text was written
        if lies_as == "missing" or (lies_as in ("folder", "link in the path") and (how == "plain" or empty)):
            assert make_own(path, REPORT) == path and (path / OWN).read_text() == "report\n"
            assert is_own(path, REPORT) and {name for name in before if not name.endswith(OWN)} <= content(top).keys()
            make_own(path, REPORT, anew=True)
            assert [entry.name for entry in path.iterdir()] == [OWN]
        else:
            with pytest.raises(NotOurs):
                make_own(path, REPORT)
            assert content(top) == before


@given(TREES, st.sampled_from(["a folder", "a file", "a link to a folder", "a dangling link"]))
def test_a_part_of_an_attempt_goes_by_the_attempts_record_whatever_it_is(tree: dict[str, Any], part: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        top = Path(scratch)
        outside, attempt = top / "outside", top / "attempt"
        fill(outside, {"thesis.tex": "a file", "checkpoint-3": {"data": "a file"}}, outside)
        fill(attempt / "folds" / "0", {"path": tree if part == "a folder" else part}, outside)
        (attempt / "linked").symlink_to(outside)
        before = content(top)
        path = attempt / "folds" / "0" / "path"
        for unproved in (path, attempt / "linked" / "checkpoint-3", attempt / "folds" / ".."):
            with pytest.raises(NotOurs):
                remove_own(unproved, ATTEMPT_PART)
        (attempt / ATTEMPT_MARKER.file).write_text("{}")
        above = attempt / "folds" / ".." / ".." / "outside" / "checkpoint-3"
        for unproved in (attempt, attempt / "linked" / "checkpoint-3", attempt / "folds" / "..", above):
            with pytest.raises(NotOurs):
                remove_own(unproved, ATTEMPT_PART)
        assert remove_own(path, ATTEMPT_PART)
        gone = "attempt/folds/0/path"
        expected = {name for name in before if name != gone and not name.startswith(f"{gone}/")}
        assert content(top).keys() == expected | {f"attempt/{ATTEMPT_MARKER.file}"}


def test_what_is_spared_stays_and_the_marker_goes_with_all_else(tmp_path: Path) -> None:
    fill(tmp_path / "attempt", {".provider": {"data": "a file"}, "data": {"data": "a file"}}, tmp_path)
    (tmp_path / "attempt" / ATTEMPT_MARKER.file).write_text("{}")
    assert not remove_own(tmp_path / "attempt", ATTEMPT_MARKER, spare=".provider")
    assert content(tmp_path).keys() == {"attempt", "attempt/.provider", "attempt/.provider/data"}


def test_after_kill_9_at_any_moment_the_next_removal_finishes(tmp_path: Path) -> None:
    inner = {"data": "a file", "tmp": {"a b": "a link to a folder"}}
    tree = {"data": inner, **{f"{number}.txt": "a read-only file" for number in range(6)}}
    fill(tmp_path / "outside", {"thesis.tex": "a file"}, tmp_path)
    untouched = content(tmp_path / "outside")
    for number in range(100):
        path = tmp_path / str(number)
        path.mkdir()
        mark(path, REPORT, "plain", tmp_path)
        fill(path, tree, tmp_path / "outside")
        if in_child(path, lambda removals, name, last=number: removals < last or os.kill(os.getpid(), signal.SIGKILL)):
            break
        with suppress(NotOurs):  # killed after the marker was removed: the folder is empty
            assert remove_own(path, REPORT)
        assert not path.exists() or not any(path.iterdir())
        assert remove_own(make_own(path, REPORT), REPORT)
    assert number == 12 and not path.exists(), "seven files, a link, three folders and the marker"
    assert content(tmp_path / "outside") == untouched


def test_what_the_system_refuses_to_remove_stays_and_so_does_the_marker(tmp_path: Path) -> None:
    path = tmp_path / "report"
    fill(path, {"data": {"data": "a file", "tmp": "a file"}, "index.html": "a file"}, tmp_path)
    mark(path, REPORT, "plain", tmp_path)

    def refuse(removals: int, name: str) -> None:
        if name == "tmp":
            raise PermissionError(name)

    assert not in_child(path, refuse)
    assert content(path).keys() == {"data", "data/tmp", OWN} and remove_own(path, REPORT)


def in_child(path: Path, before: Callable[[int, str], object]) -> bool:
    """Remove a folder in a child that calls `before` ahead of each removal, with the number and the name; return True
    if the child ended by itself and found nothing left."""
    child = os.fork()
    if child == 0:
        calls = count()

        def ahead(event: str, arguments: tuple[Any, ...]) -> None:
            if event in ("os.remove", "os.rmdir"):
                before(next(calls), Path(arguments[0]).name)

        sys.addaudithook(ahead)
        os._exit(0 if remove_own(path, REPORT) else 1)
    return os.waitpid(child, 0)[1] == 0


def test_a_temporary_folder_of_this_process_needs_no_marker_and_another_one_in_its_place_stays(tmp_path: Path) -> None:
    folder = make_own_temporary("r2v-test-")
    fill(folder, {"data": {"data": "a read-only file"}}, tmp_path)
    assert {path.name for path in folder.iterdir()} == {"data"} and remove_own(folder, TEMPORARY)
    mine = tmp_path / "mine"
    mine.mkdir()
    with pytest.raises(NotOurs):
        remove_own(mine, TEMPORARY)
    adopt_temporary(mine, mine.lstat())
    mine.rename(tmp_path / "moved")
    fill(mine, {"thesis.tex": "a file"}, tmp_path)
    with pytest.raises(NotOurs):
        require_own(mine, TEMPORARY)
    (mine / "thesis.tex").unlink()
    mine.rmdir()
    mine.symlink_to(tmp_path / "moved")
    with pytest.raises(NotOurs):
        remove_own(mine, TEMPORARY)


ALLOWED = {
    "storage/removal.py": {"rmtree", "rmdir"},
    "storage/lease.py": {"rmdir"},  # the folder that held its own file
    "envs/swe/recipes.py": {"rm -r"},  # in a container, the files of a patch
}
"""Module -> the ways of removing folders that it may use."""


def test_no_other_module_removes_a_folder() -> None:
    used = {path.relative_to(PACKAGE).as_posix(): ways_to_remove_folders(path) for path in PACKAGE.rglob("*.py")}
    assert {name: ways for name, ways in used.items() if ways} == ALLOWED


def ways_to_remove_folders(path: Path) -> set[str]:
    """Return the calls and words in a module that remove folders."""
    ways = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr in ("rmtree", "rmdir", "removedirs"):
            ways.add(node.attr)
        elif isinstance(node, ast.alias) and node.name in ("rmtree", "rmdir", "removedirs"):
            ways.add(node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            ways |= {word for word in ("--clear", "rm -r") if _runs(node.value, word)}
    return ways


def _runs(text: str, word: str) -> bool:
    """True if a text that is run, not printed, contains the words."""
    return text == word or text.startswith(f"{word}f ") or f"\n{word}" in text
