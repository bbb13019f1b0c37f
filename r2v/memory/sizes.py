"""Sizes: bytes as text and back. GiB is 2**30, as nvidia-smi and torch count; GB is 10**9."""

from __future__ import annotations

import math
import re

from r2v.constraints import shown
from r2v.errors import UsageError

GIB = 2**30
_PREFIX_BYTES, _PREFIX_SHARE = 4 * GIB, 0.05
_LARGEST = 10**18
_UNITS = {
    "": 2**30,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "t": 2**40,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def parse_size(text: str) -> int:
    """Return the bytes of a size such as 44.53GiB, 80GB, or 48G (Slurm's notation: a power of two). A bare number is in
    GiB. Raise UsageError for other text.

    >>> parse_size("1.5GiB")
    1610612736
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None or not 0 < float(match[1]) * unit <= _LARGEST:
        raise UsageError(
            f"size {shown(text)}: expected a number above 0, of GiB or with a unit, such as 80, 44.53GiB, 80GB or 48G, "
            "up to 1 EB"
        )
    return int(float(match[1]) * unit)


def gib(size: float) -> str:
    """Return bytes in GiB with two decimals.

    >>> gib(15032385536)
    '14.00'
    """
    return f"{size / GIB:.2f}"


def mem_header(size: float) -> str:
    """Return bytes as a value of `--mem`, rounded up to a multiple of 8 GiB."""
    return f"{8 * math.ceil(size / GIB / 8)}G"


def prefix_states(memory: float) -> float:
    """Return the bytes of one model's prefix cache (`r2v.llm.local.prefix_cache`) on a GPU of `memory` bytes."""
    return min(_PREFIX_BYTES, _PREFIX_SHARE * memory)
