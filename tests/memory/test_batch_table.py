"""The seed's table of batches, with the seed's keys."""

from __future__ import annotations

import pytest

from r2v.errors import UsageError
from r2v.memory import optimize_batch_processing


@pytest.mark.parametrize(
    ("memory", "base", "critic", "micro"),
    [(44.53, 16, 32, 8), (40.01, 16, 32, 8), (40, 8, 16, 4), (20.5, 8, 16, 4), (20, 4, 8, 2), (0.5, 4, 8, 2)],
)
def test_the_three_rows(memory: float, base: int, critic: int, micro: int) -> None:
    assert optimize_batch_processing(memory) == {"base_batch": base, "critic_batch": critic, "micro_batch": micro}


@pytest.mark.parametrize("memory", [0, -1, float("nan")])
def test_no_memory_is_refused(memory: float) -> None:
    with pytest.raises(UsageError, match="must be above 0"):
        optimize_batch_processing(memory)
