"""Trust: suites of hostile and damaged input, generated from tables, of which `make test` plays a keyed draw.

    @pytest.mark.parametrize("case", drawn(CASES, 40, "bad input"))

`--whole-suites`, which `make test-all` passes, plays all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from r2v import randomness

MICRO = Path(__file__).parents[1] / "micro.yaml"
"""Configuration of the fixture `micro_run`: the smallest pipeline that still learns something."""

Case = TypeVar("Case")

whole_suites = False
"""True if every case is played; set by tests/conftest.py before any test module is imported."""


def drawn(cases: Sequence[Case], count: int, key: str) -> list[Case]:
    """Return `count` of the cases, in their order and the same ones in every process; all of them with
    --whole-suites."""
    if whole_suites or len(cases) <= count:
        return list(cases)
    chosen = randomness.generator("trust", key).sample(range(len(cases)), count)
    return [cases[index] for index in sorted(chosen)]
