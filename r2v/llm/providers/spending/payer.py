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
    """Let this pipeline pay for all requests in the block, those of child processes included."""
    before = current_payer()
    os.environ["R2V_PAYER"] = pipeline
    try:
        yield
    finally:
        os.environ["R2V_PAYER"] = before or ""


def current_payer() -> str | None:
    """Return the pipeline that pays; None outside of any, as in a game."""
    return os.environ.get("R2V_PAYER") or None
