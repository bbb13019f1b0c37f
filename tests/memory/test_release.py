"""OpenBLAS has its buffers before the address space is full, where it would look for them forever."""

from __future__ import annotations

import subprocess
import sys

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
