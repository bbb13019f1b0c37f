"""Memory of this process: free pages go back to the system, and OpenBLAS takes its buffers in time."""

from __future__ import annotations

import ctypes
import mmap
import resource
from contextlib import suppress

_OPENBLAS_BYTES = 2 * 128 * 2**20
"""Most address space that the two OpenBLAS libraries, of NumPy and SciPy, ask for: a buffer of BUFFER_SIZE each."""


def release_free_memory() -> None:
    """Return free heap pages to the system. glibc keeps those below a block in use; elsewhere this does nothing."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


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
