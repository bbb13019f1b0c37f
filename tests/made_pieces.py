"""Pieces of made-up training seeds, whose figures are known in closed form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import zstandard

from benchmarks.placing import POINTS
from benchmarks.student_pieces import Piece

TASKS = 40
PAID = (10, 20, 30, 40, 50)
"""Micro-USD at each point, of 100 that llm_only costs: all tasks alike."""


def cell(method: str, point: str, solved: int, paid: int, actions: str) -> dict[str, Any]:
    return {
        "method": method,
        "point": point,
        "success": "1" * solved + "0" * (TASKS - solved),
        "micro_usd": [paid] * TASKS,
        "actions": [actions] * (TASKS // 2) + ["equal"] * (TASKS // 2),
    }


def made_piece(
    folder: Path, number: int, solved: dict[str, int], rescue: int | None = 20, condition: str = "noisy"
) -> Piece:
    """Return a student's piece: slm_only solves none for nothing, llm_only all for 100, and each method this many at
    every point."""
    lines = [cell("slm_only", "", 0, 0, ""), cell("llm_only", "", TASKS, 100, "")]
    lines += [
        cell(method, point, many, paid, method)
        for method, many in solved.items()
        for point, paid in zip(POINTS, PAID, strict=True)
    ]
    lines.append({"method": "oracle", "micro_usd_by_calls": [[None, rescue]] * 10})
    head = {"student": number, "commit": "0" * 40, "cpu_seconds": {}}
    path = folder / f"student-{number}-{condition}.jsonl.zst"
    text = "".join(json.dumps(line) + "\n" for line in [head, *({"condition": condition, **line} for line in lines)])
    path.write_bytes(zstandard.ZstdCompressor().compress(text.encode()))
    return Piece.read(path)
