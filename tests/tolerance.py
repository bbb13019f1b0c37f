"""Tolerances of float comparisons, derived from the type and the size of the summands.

Two processors, or two kernels on one, add the same numbers in another order. Rounding errors of a sum of n terms then
behave like a random walk: the results differ by about eps * sqrt(n) * scale, where eps is the spacing of the type at 1
and scale the size of the results. An absolute tolerance such as 1e-5 holds only on the processor that it was tried on.
"""

from __future__ import annotations

import math
from typing import Any

import torch

MARGIN = 4.0
"""Standard deviations of the random walk; differences between AVX2 and AVX512 are below a half."""


def rounding(dtype: torch.dtype, *, terms: int, scale: float) -> float:
    """Return the largest difference between two orders of summing `terms` numbers to results of size `scale`."""
    return MARGIN * torch.finfo(dtype).eps * math.sqrt(terms) * scale


def of_logits(model: Any, logits: torch.Tensor, dtype: torch.dtype) -> float:
    """Return this tolerance for a transformer's logits when `dtype` is the narrower type of the two: each goes through
    a sum over the hidden size in every layer."""
    config = model.config
    terms = config.hidden_size * config.num_hidden_layers
    return rounding(dtype, terms=terms, scale=float(logits.abs().max()))
