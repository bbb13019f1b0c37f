"""TF32 for float32 products on a GPU, for as long as a training lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def tf32(wanted: bool) -> Iterator[None]:
    """What is multiplied in float32 while a GPU trains (all of a fully trained model, or the adapters' weights and the
    head beside bfloat16) may use TF32; afterwards all is as it was, so that what acts in the same process computes as
    in one of its own."""
    before = torch.get_float32_matmul_precision()
    try:
        if wanted:
            torch.set_float32_matmul_precision("high")
        yield
    finally:
        torch.set_float32_matmul_precision(before)
