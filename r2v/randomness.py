"""Randomness as a pure function of names.

There is no generator that is advanced: every draw is looked up under a key such as
`(seed, task_id, step, "slm", k)`. Two methods that take the same decision at the same step therefore draw
the same number, a task's outcome does not depend on which tasks ran before it, and sharding or resuming
changes nothing. Keys hold only what identifies the draw: never a clock, host, path or run id.
"""

from __future__ import annotations

import hashlib
import json
import random

Key = tuple[str | int, ...]
"""What identifies a draw, e.g. `(seed, task_id, step, actor, k)`."""


_as_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def digest(*key: str | int) -> bytes:
    """SHA-256 of the key's JSON: 32 bytes, equal on every machine and Python version."""
    return hashlib.sha256(_as_json(key).encode()).digest()


def uniform(*key: str | int) -> float:
    """A number in [0, 1) that belongs to this key: 53 bits of its digest.

    >>> uniform(1, "task", 0) == uniform(1, "task", 0)
    True
    """
    return (int.from_bytes(digest(*key)[:8], "big") >> 11) / (1 << 53)


def generator(*key: str | int) -> random.Random:
    """A generator that starts at this key, for draws that take a variable number of values."""
    return random.Random(int.from_bytes(digest(*key), "big"))


def seed_of(*key: str | int) -> int:
    """A 63-bit seed for libraries that want one (torch, numpy, scikit-learn takes the low 32 bits)."""
    return int.from_bytes(digest(*key)[:8], "big") >> 1
