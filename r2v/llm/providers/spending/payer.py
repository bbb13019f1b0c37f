"""Payer: the pipeline under whose cap this process sends requests to providers.

The name is kept in an environment variable, R2V_PAYER, so that the processes a stage starts have the same payer.
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
