"""Precision of products and layers: TF32 while a GPU trains, and exact float64 layers on a CPU.

transformers' RMS norms round to float32 in any precision; a difference of 1e-16 that flips such a rounding
grows to 1e-9. And torch has no kernel for a depthwise convolution in float64: a few multiplications
and additions are five times as fast for the handful of tokens that decoding adds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv, apply_mask_to_padding_states


@contextmanager
def tf32(enabled: bool) -> Iterator[None]:
    """Let float32 products use TF32 in the block (all products of a fully trained model, or those of the adapters and
    the head next to bfloat16), and restore the setting, so that a policy acting in the same process computes as in
    a process of its own."""
    before = torch.get_float32_matmul_precision()
    try:
        if enabled:
            torch.set_float32_matmul_precision("high")
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def use_float64_layers(model: Any) -> None:
    """Replace, in place, the layers of a float64 model that round to float32 or are slow. Others stay as they are."""
    for module in list(model.modules()):
        for name, layer in module.named_children():
            if type(layer).__name__.endswith("RMSNorm") and layer.weight.dtype == torch.float64:
                exact = torch.nn.RMSNorm(layer.weight.shape, eps=layer.variance_epsilon, dtype=torch.float64)
                exact.weight = layer.weight
                setattr(module, name, exact)
            elif isinstance(layer, Lfm2ShortConv) and layer.conv.weight.dtype == torch.float64:
                setattr(module, name, ShortConv(layer))


class ShortConv(torch.nn.Module):
    """LFM2's gated short convolution, out = W_o (C * conv(B * x)), sharing the original's parameters."""

    def __init__(self, original: Lfm2ShortConv) -> None:
        super().__init__()
        self.layer_idx, self.layer_type = original.layer_idx, original.layer_type
        self.in_proj, self.conv, self.out_proj = original.in_proj, original.conv, original.out_proj

    def forward(
        self, hidden_states: Tensor, past_key_values: Any = None, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> Tensor:
        """Return (B, T, D) from (B, T, D), with the convolution's past in the cache where there is one."""
        length = hidden_states.shape[1]
        masked = apply_mask_to_padding_states(hidden_states, attention_mask)
        gate, out_gate, x = self.in_proj(masked).transpose(-1, -2).chunk(3, dim=-2)
        inputs = gate * x
        if past_key_values is not None:
            inputs = self._with_past(inputs, past_key_values)
        mixed = depthwise(inputs, self.conv.weight[:, 0], self.conv.bias, length)
        return self.out_proj((out_gate * mixed).transpose(-1, -2).contiguous())  # type: ignore[no-any-return]

    def _with_past(self, inputs: Tensor, cache: Any) -> Tensor:
        """Return the inputs after the cached ones of earlier tokens; the cache is updated."""
        layer = cache.layers[self.layer_idx]
        if not layer.has_previous_state[0] or inputs.shape[-1] > 1 or layer.record_past:
            whole: Tensor = cache.update_conv_state(inputs, self.layer_idx, conv_kernel_size=self.conv.kernel_size[0])
            return whole
        state = layer.conv_states[0]
        whole = torch.cat([state, inputs], dim=-1)
        state.copy_(whole[:, :, -state.shape[-1] :])
        return whole


def depthwise(inputs: Tensor, weight: Tensor, bias: Tensor | None, length: int) -> Tensor:
    """Return the last `length` outputs of a causal depthwise convolution, zeros before the first input.

    inputs (B, D, T), weight (D, K), bias (D); y[t] = bias + sum_k weight[k] * inputs[t - K + 1 + k]. Returns
    (B, D, length).
    """
    taps = weight.shape[-1]
    span = inputs[:, :, -(length + taps - 1) :]
    span = pad(span, (length + taps - 1 - span.shape[-1], 0))
    total = span[:, :, :length] * weight[:, :1]
    for k in range(1, taps):
        total = total + span[:, :, k : k + length] * weight[:, k : k + 1]
    return total if bias is None else total + bias[:, None]
