"""Randomness as a pure function of keys.

No generator is advanced: every draw has a key such as `(seed, task_id, step, "slm", k)`. Two methods with the same
decision at the same step therefore draw the same number, a task's outcome does not depend on earlier tasks, and
sharding or resuming changes nothing. Keys identify the draw only: never a clock, host, path or run id.
"""

from __future__ import annotations

import hashlib
import json
import random

Key = tuple[str | int, ...]
"""Key of a draw, e.g. `(seed, task_id, step, actor, k)`."""

_as_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def digest(*key: str | int) -> bytes:
    """Return the SHA-256 of the key's JSON: 32 bytes, equal on every machine and Python version."""
    return hashlib.sha256(_as_json(key).encode()).digest()


def uniform(*key: str | int) -> float:
    """Return the key's number in [0, 1): 53 bits of its digest.

    >>> uniform(1, "task", 0) == uniform(1, "task", 0)
    True
    """
    return (int.from_bytes(digest(*key)[:8], "big") >> 11) / (1 << 53)


def generator(*key: str | int) -> random.Random:
    """Return a generator seeded by the key, for draws of a variable number of values."""
    return random.Random(int.from_bytes(digest(*key), "big"))


def seed_of(*key: str | int) -> int:
    """Return the key's 63-bit seed, for torch and numpy; scikit-learn takes the low 32 bits."""
    return int.from_bytes(digest(*key)[:8], "big") >> 1
