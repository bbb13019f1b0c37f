"""Payer: the pipeline that pays for what this process asks providers, under one cap.

    with paying("desk_noisy"):            # stages, helpers and ranks of it, judges of its worlds
        ...

The name is an environment variable, because processes that a stage starts ask for the same pipeline.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

PAYER = "R2V_PAYER"
"""The environment variable that holds the pipeline's name."""


@contextmanager
def paying(pipeline: str) -> Iterator[None]:
    """What is asked in this block is paid by the pipeline of this name."""
    before = os.environ.get(PAYER)
    os.environ[PAYER] = pipeline
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(PAYER)
        else:
            os.environ[PAYER] = before


def payer() -> str | None:
    """The pipeline that pays; None where none does, as of a game."""
    return os.environ.get(PAYER) or None
