"""Payer: the pipeline that pays for what this process asks providers, under one cap.

    with paying("desk_noisy"):            # stages, helpers and ranks of it, judges of its worlds
        ...

The name is an environment variable, R2V_PAYER, because processes that a stage starts ask for the same pipeline.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paying(pipeline: str) -> Iterator[None]:
    """What is asked in this block is paid by the pipeline of this name."""
    before = payer()
    os.environ["R2V_PAYER"] = pipeline
    try:
        yield
    finally:
        os.environ["R2V_PAYER"] = before or ""


def payer() -> str | None:
    """The pipeline that pays; None where none does, as of a game."""
    return os.environ.get("R2V_PAYER") or None
