"""The page of benchmarks/hrl_study.py: its table and the picture of its curves, made of the runs that there are."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Runs = Sequence[dict[str, Any]]
BestFactor = Callable[[str, Runs], float | None]


def known(path: Path, iterations: int, episodes: int) -> list[dict[str, Any]]:
    """The runs of this size that there are."""
    lines = path.read_text().splitlines() if path.exists() else []
    runs = [json.loads(line) for line in lines]
    return [one for one in runs if (one["iterations"], one.get("episodes")) == (iterations, episodes)]


def right(digits: str) -> float:
    """Right answers in %."""
    return 100 * digits.count("1") / len(digits)


def page(runs: Runs, arms: Sequence[str], best_factor: BestFactor, count: int) -> None:
    """Write the page."""
    raise NotImplementedError


def picture(runs: Runs, arms: Sequence[str], best_factor: BestFactor) -> None:
    """Draw the curves."""
    raise NotImplementedError
