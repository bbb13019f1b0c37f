"""Memory of this process: free pages go back to the system, and OpenBLAS takes its buffers in time."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
from contextlib import suppress
from pathlib import Path

_GROWTH = 1 << 27
"""Bytes of growth after which memory is released: more than a wave of the bundled student takes and frees."""
_OPENBLAS_BYTES = 2 * 128 * 2**20
"""Most address space that the two OpenBLAS libraries, of NumPy and SciPy, ask for: a buffer of BUFFER_SIZE each."""


def keep_heap() -> None:
    """Let all threads allocate from one heap whose end is returned to the system from 256 MiB on, and tensors of more
    than 32 MiB outside it. By default each wave and each update returns its memory and takes it anew page by page, and
    each thread keeps free memory of its own. Variables MALLOC_* of the user's are left as they are."""
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    with suppress(AttributeError):
        for parameter, value in ((-8, 1), (-1, 1 << 28), (-3, 1 << 25)):  # M_ARENA_MAX, M_TRIM_, M_MMAP_THRESHOLD
            ctypes.CDLL(None).mallopt(parameter, value)


def release_free_memory() -> None:
    """Return free heap pages to the system. glibc keeps those below a block in use; elsewhere this does nothing."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def release_growth(since: int) -> int:
    """Release free memory if this process has grown by more than 128 MiB since its resident memory was `since` bytes.
    Return the bytes to compare with next time: 0 where the system does not tell."""
    resident = resident_memory()
    if resident - since <= _GROWTH:
        return min(since, resident)
    release_free_memory()
    return resident_memory()


def resident_memory() -> int:
    """Return the bytes of this process's resident memory; 0 where the system does not tell."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def reserve_openblas_buffers() -> None:
    """Let OpenBLAS allocate its buffers now if the address space is limited (ulimit -v). Later it could get none, and
    its `blas_memory_alloc` tries again forever, within Python's lock, so that not even SIGTERM would end the process.
    Raises MemoryError if they do not fit."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return
    import numpy as np
    from scipy.linalg import lapack

    try:
        mmap.mmap(-1, _OPENBLAS_BYTES).close()
    except OSError as error:
        raise MemoryError(
            f"the address space is limited to {limit / 2**20:.0f} MiB (ulimit -v), less than {_OPENBLAS_BYTES >> 20} "
            f"MiB of it are left, and OpenBLAS needs them ({error}); raise the limit"
        ) from error
    np.linalg.cholesky(np.eye(2))
    lapack.dpotrf(np.eye(2))
