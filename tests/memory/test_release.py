"""Free memory goes back to the system."""

from __future__ import annotations

import sys

import pytest

from r2v.memory.release import keep_heap, release_growth, resident_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_growth_is_counted_from_the_smallest_size() -> None:
    resident = resident_memory()
    assert release_growth(resident - (1 << 20)) == resident - (1 << 20)
    assert release_growth(1 << 60) == pytest.approx(resident, rel=0.1)


def test_small_blocks_freed_between_others_are_returned() -> None:
    keep_heap()
    blocks = [bytes(100_000) for _ in range(4_000)]
    grown = resident_memory()
    kept = blocks[::50]
    del blocks
    assert release_growth(grown - (1 << 28)) < grown - 150_000_000
    assert len(kept) == 80
