from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from r2v.errors import EnvironmentFault
from r2v.storage.files import content_sha256, write_json, write_lines, write_text


def line(**changes: object) -> str:
    record = {"id": "é", "x": 0.1, "wall_time_seconds": None, "metadata": {"run_id": None, "seed": 1}}
    return json.dumps({**record, **changes}, ensure_ascii=False, separators=(",", ":"))


def content(folder: Path, *lines: str) -> str:
    path = folder / "episodes.jsonl"
    write_lines(path, lines)
    return content_sha256(path)


def test_content_ignores_run_and_time_and_nothing_else(tmp_path: Path) -> None:
    plain = content(tmp_path, line())
    assert content(tmp_path, line(wall_time_seconds=3.5, metadata={"run_id": 'r"1', "seed": 1})) == plain
    assert content(tmp_path, line(x=0.2)) != plain
    assert content(tmp_path, line(metadata={"run_id": None, "seed": 2})) != plain


def test_a_tools_argument_named_run_id_is_content(tmp_path: Path) -> None:
    a, b = (content(tmp_path, line(arguments={"run_id": name})) for name in "ab")
    assert a != b


def test_other_files_are_hashed_as_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"run_id":"1"}')
    (tmp_path / "b.json").write_text('{"run_id":"2"}')
    assert content_sha256(tmp_path / "a.json") != content_sha256(tmp_path / "b.json")


def test_a_failing_writer_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.jsonl"
    write_lines(path, ["old"])
    with pytest.raises(ZeroDivisionError):
        write_lines(path, (str(1 // n) for n in (1, 0)))
    assert path.read_text() == "old\n"
    assert list(path.parent.iterdir()) == [path]


def test_nan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Out of range"):
        write_json(tmp_path / "x.json", {"x": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_full_disk_is_one_clear_fault_and_the_old_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    write_text(path, "old")
    program = (
        "import resource, sys; from pathlib import Path; from r2v.storage.files import write_text; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); write_text(Path(sys.argv[1]), 'n' * 1000)"
    )
    told = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False)
    assert f"{EnvironmentFault.__name__}: cannot write {path}: File too large" in told.stderr
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
