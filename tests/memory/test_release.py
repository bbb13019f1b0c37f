"""Free memory goes back to the system; OpenBLAS has its buffers before the address space is full, where it would look
for them forever."""

from __future__ import annotations

import subprocess
import sys

import pytest

from r2v.memory.release import release_growth, resident_memory

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
LIMITED = """
import resource, sys
import numpy as np
from scipy.linalg import lapack
from r2v.memory.release import reserve_openblas_buffers

def limit(more):
    pages = int(open("/proc/self/statm").read().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, resource.RLIM_INFINITY))

limit(int(sys.argv[1]) << 20)
reserve_openblas_buffers()
limit(1 << 20)
print(lapack.dpotrf(np.eye(3))[1], np.linalg.cholesky(np.eye(3)).sum())
"""


def limited(mib: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", LIMITED, str(mib)], capture_output=True, text=True)


def test_openblas_computes_after_the_address_space_is_full() -> None:
    done = limited(1024)
    assert (done.stdout, done.returncode) == ("0 3.0\n", 0), done.stderr


def test_too_small_an_address_space_is_named_before_openblas_is_asked() -> None:
    done = limited(64)
    assert done.returncode == 1 and "MemoryError: the address space is limited to" in done.stderr
    assert "raise the limit" in done.stderr


@ON_LINUX
def test_growth_is_counted_from_the_smallest_size() -> None:
    resident = resident_memory()
    assert release_growth(resident - (1 << 20)) == resident - (1 << 20)
    assert release_growth(1 << 60) == pytest.approx(resident, rel=0.1)


FREED = """
from r2v.memory.release import keep_heap, release_growth, resident_memory
keep_heap()
blocks = [bytes(100_000) for _ in range(4_000)]
grown = resident_memory()
kept = blocks[::50]
del blocks
assert release_growth(grown - (1 << 28)) < grown - 150_000_000
assert len(kept) == 80
"""


@ON_LINUX
def test_small_blocks_freed_between_others_are_returned() -> None:
    """In a process of its own: another test's free memory would take the blocks."""
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
