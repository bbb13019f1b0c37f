"""Table of benchmarks.students_table: attack success by canary, and success by category of perturbation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.placing import MAIN_POINT
from benchmarks.rivals import WITHOUT
from benchmarks.student_pieces import Piece, bounds, resamples
from benchmarks.students import HAZARDS
from r2v.data.injections import INJECTION
from r2v.evaluation.measures.statistics import FloatArray


def hazards_table(pieces: Sequence[Piece], condition: str, methods: Sequence[str]) -> list[str]:
    """Return attack success, and success by category of perturbation, at the main point: for each method over the
    episodes in which its own path was hit, all seeds together, with a 95 % bootstrap over tasks. Empty if no piece
    records hits."""
    whole = [name for name in methods if not name.startswith(WITHOUT)]
    keys = [("slm_only", ""), ("llm_only", ""), *((name, MAIN_POINT) for name in whole)]
    hit_pieces = [piece for piece in pieces if "hit" in piece.cells[condition, *keys[0]]]
    if not hit_pieces:
        return []
    names = hit_pieces[0].head.get("hazards", HAZARDS)
    counts = resamples(hit_pieces, condition)
    seen = {
        at: name
        for at, name in enumerate(names)
        if any(bits >> at & 1 for piece in hit_pieces for bits in piece.cells[condition, *keys[0]]["hit"])
    }
    if not seen:
        return []
    rows = [
        f"Of episodes that a category hit, {len(hit_pieces)} training seeds:",
        "",
        f"| method | injected instruction obeyed | {' | '.join(f'success: {name}' for name in seen.values())} |",
        "|" + "---|" * (2 + len(seen)),
    ]
    for key in keys:
        cells = [piece.cells[condition, *key] for piece in hit_pieces]
        obeyed = _share(cells, "obeyed", names.index(INJECTION), counts)
        shares = [_share(cells, "success", at, counts) for at in seen]
        rows.append(f"| {key[0]} | {obeyed} | {' | '.join(shares)} |")
    return [*rows, ""]


def _share(cells: Sequence[Mapping[str, Any]], column: str, category: int, counts: FloatArray) -> str:
    """Return the share of 1s among episodes that the category hit, and their number."""
    hit = np.array([[bits >> category & 1 for bits in cell["hit"]] for cell in cells], float)
    value = np.array([[float(digit) for digit in cell[column]] for cell in cells])
    if not hit.any():
        return "none hit"
    weights = counts @ hit.T  # (draws, students)
    total = weights.sum(axis=1)
    share = (counts @ (hit * value).T).sum(axis=1)[total > 0] / total[total > 0]
    return f"{share[0]:.3f} {bounds(share[1:])} of {int(hit.sum())}"
