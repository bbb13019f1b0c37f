"""The table of the preference step, on a tiny made-up piece whose figures are known in closed form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import zstandard

from benchmarks.preference import read_piece, table
from r2v.errors import UsageError

TASKS = 40


def _piece(folder: Path, number: int, solved: int, accepted: bool, first: int = 0) -> list[dict[str, Any]]:
    """Make a student whose clone solves 10 tasks, and one recipe that solves these and others."""
    lines = [
        {"student": number, "commit": "0" * 40, "first_task": first, "cpu_seconds": 1.0},
        {"recipe": "clone", "success": "1" * 10 + "0" * (TASKS - 10)},
        {
            "recipe": "dpo",
            "rate": "1e-3",
            "examples": 30,
            "updates": 5,
            "acceptance": {"accepted": accepted},
            "success": "1" * solved + "0" * (TASKS - solved),
        },
    ]
    path = folder / f"student-{number}.jsonl.zst"
    text = "".join(json.dumps(line) + "\n" for line in lines)
    path.write_bytes(zstandard.ZstdCompressor().compress(text.encode()))
    return read_piece(path)


def test_a_step_earns_its_place_by_what_is_published(tmp_path: Path) -> None:
    """Twenty of forty tasks more in each student: +.5, with an error of sqrt(.25 / 40) over tasks."""
    lines = table([_piece(tmp_path, number, 30, True) for number in (0, 1)])
    assert lines[0].startswith("students 0, 1; 40 noisy desk tasks from 0 on")
    rows = [line.split() for line in lines[2].splitlines()]
    assert rows[1][:8] == ["dpo", "1e-3", "0", "30", "5", "0.250", "0.750", "+0.500"]
    assert float(rows[1][10]) == pytest.approx(2.80 * (0.25 / TASKS) ** 0.5, rel=0.1), "detectable"
    assert rows[3][:4] == ["dpo", "1e-3", "all", "+0.500"] and rows[3][-4:] == ["2", "of", "2", "accepted"]
    assert lines[-1].startswith("- preference step, dpo at 1e-3: earns its place: yes, +0.500 [")


def test_what_is_thrown_away_earns_nothing(tmp_path: Path) -> None:
    """A policy that is better and was not accepted is not published."""
    lines = table([_piece(tmp_path, number, 30, False) for number in (0, 1)])
    assert "earns its place: no, +0.000 [+0.000, +0.000] success as published, +0.500 [" in lines[-1]
    assert lines[2].count("thrown away") == 2


def test_pieces_of_unlike_tasks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unlike tasks"):
        table([_piece(tmp_path, 0, 30, True), _piece(tmp_path, 1, 30, True, first=7)])
