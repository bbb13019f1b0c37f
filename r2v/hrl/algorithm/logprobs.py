"""Log-probabilities of completion tokens, computed in chunks.

The logits of a large vocabulary are the memory peak of an update: 8 rows of 1,024 tokens and 128,256 words take some
12 GiB (float32 logits, their log-softmax and its gradient). The language-model head therefore reads the hidden states
of completion tokens only, `chunk` at a time, and recomputes its logits in backward. Tokens are stored, never encoded
again from text, and padding follows prompt and completion, which have no gap between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from r2v.errors import InputError, UsageError
from r2v.memory.planner.phases import CHUNK

_COMPUTES_IN_BFLOAT16 = "r2v_computes_in_bfloat16"


def set_autocast(model: Any) -> None:
    """Mark a model with trained float32 weights, all or its adapters, to compute in bfloat16 (`autocast_of`)."""
    causal = model.get_base_model() if hasattr(model, "peft_config") else model
    setattr(causal, _COMPUTES_IN_BFLOAT16, True)
    for layer in causal.modules():
        if hasattr(layer, "cast_input_dtype_enabled"):  # peft would keep a float32 copy of each adapter's input
            layer.cast_input_dtype_enabled = False


def has_autocast(model: Any) -> bool:
    """True after `set_autocast`."""
    return getattr(model, _COMPUTES_IN_BFLOAT16, False)


def autocast_of(model: Any) -> torch.autocast:
    """Return the context of a model's forward passes: bfloat16 autocast after `set_autocast`, else a disabled one.
    Autocast keeps its copies of weights until the block ends, so no optimizer may step in it."""
    return torch.autocast(model.device.type, torch.bfloat16, enabled=has_autocast(model))


@dataclass(frozen=True, kw_only=True)
class TokenBatch:
    """N sequences padded to T: all tensors (N, T)."""

    ids: Tensor
    attention: Tensor
    """True where tokens are, bool."""
    positions: Tensor
    completion: Tensor
    """True where generated tokens are, bool."""


def pad_sequences(
    prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], device: Any = None
) -> TokenBatch:
    """Return prompts and completions padded to one length at the end. A completion includes its EOS if one was drawn.

    Raises InputError for an empty prompt, because no token would predict the completion's first.
    """
    if not all(prompts):
        raise InputError(
            f"sequence {[len(prompt) for prompt in prompts].index(0)}: its prompt has no tokens; begin it "
            "with one, such as the tokenizer's bos_token"
        )
    lengths = [len(prompt) + len(completion) for prompt, completion in zip(prompts, completions, strict=True)]
    ids = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    attention, completion_mask = torch.zeros_like(ids, dtype=torch.bool), torch.zeros_like(ids, dtype=torch.bool)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        end = lengths[row]
        ids[row, :end] = torch.tensor([*prompt, *completion])
        attention[row, :end] = True
        completion_mask[row, end - len(completion) : end] = True
    positions = (attention.cumsum(-1) - 1).clamp_min(0)
    return TokenBatch(
        ids=ids.to(device),
        attention=attention.to(device),
        positions=positions.to(device),
        completion=completion_mask.to(device),
    )


def token_logprobs(logits: Tensor, ids: Tensor) -> Tensor:
    """Return log softmax(logits)[ids], (...) for (..., V) and (...), in float32 or wider. Finite for finite logits."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return wide.gather(-1, ids[..., None]).squeeze(-1) - wide.logsumexp(-1)


def completion_logprobs(
    model: Any, batch: TokenBatch, chunk: int = CHUNK, *, gradient_checkpointing: bool = False
) -> Tensor:
    """Return (N, T): the log-probability of each completion token given all earlier ones, 0 elsewhere.

    `model` is a transformers causal model, with its active adapters if it has any. Only `chunk * V` logits exist at a
    time; with `gradient_checkpointing` only each layer's input is kept, and the layer is recomputed in backward. Raises
    UsageError for models whose layers cannot be recomputed.
    """
    row, column = batch.completion.nonzero(as_tuple=True)
    return logprobs_at(model, batch, row, column, chunk, gradient_checkpointing=gradient_checkpointing)


def logprobs_at(
    model: Any, batch: TokenBatch, row: Tensor, column: Tensor, chunk: int, *, gradient_checkpointing: bool = False
) -> Tensor:
    """Return (N, T): the log-probabilities of the tokens at `row` and `column`, flat tensors, 0 elsewhere; otherwise as
    `completion_logprobs`."""
    causal = model.get_base_model() if hasattr(model, "peft_config") else model
    with autocast_of(causal):
        with _checkpointed_layers(causal) if gradient_checkpointing else nullcontext():
            states = last_states(causal, batch)
        flat = _in_chunks(partial(_logits, causal), states[row, column - 1], batch.ids[row, column], chunk)
    return flat.new_zeros(batch.ids.shape).index_put((row, column), flat)


def last_states(causal: Any, batch: TokenBatch) -> Tensor:
    """Return the last layer's states (N, T, hidden), the input of the head."""
    states: Tensor = causal.base_model(
        input_ids=batch.ids, attention_mask=batch.attention.long(), position_ids=batch.positions, use_cache=False
    ).last_hidden_state
    return states


@contextmanager
def _checkpointed_layers(model: Any) -> Iterator[None]:
    """Enable gradient checkpointing in the forward passes of the block."""
    # transformers checkpoints in training mode only, so the layers themselves are put in that mode. Their submodules
    # are not: in training mode they would apply dropout, and log-probabilities would no longer be those of generation.
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise UsageError(
            f"hierarchical.gradient_checkpointing=true: no layer of this {model.config.model_type} model "
            "can be recomputed in backward; set it to false"
        )
    modes = [layer.training for layer in layers]
    for layer in layers:
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
        layer.gradient_checkpointing = layer.training = True
    try:
        yield
    finally:
        for layer, mode in zip(layers, modes, strict=True):
            layer.gradient_checkpointing, layer.training = False, mode


def _logits(causal: Any, states: Tensor) -> Tensor:
    """Return logits (..., V) of hidden states (..., hidden), rescaled after the head as in the model's family: Gemma 2
    caps them softly, Cohere multiplies and Granite divides them."""
    logits, config = causal.get_output_embeddings()(states), causal.config
    if scale := getattr(config, "logit_scale", None):
        logits = logits * scale
    if divisor := getattr(config, "logits_scaling", None):
        logits = logits / divisor
    if cap := getattr(config, "final_logit_softcapping", None):
        logits = cap * torch.tanh(logits / cap)
    return logits  # type: ignore[no-any-return]


def require_known_logits(model: Any) -> None:
    """Raise UsageError for a model that rescales its logits in another way than the chunked computation. Both are
    compared on a few tokens."""
    causal = model.get_base_model() if hasattr(model, "peft_config") else model
    ids = torch.arange(4, device=causal.device)[None]
    with torch.no_grad(), autocast_of(causal):
        theirs = causal(input_ids=ids, use_cache=False).logits
        ours = _logits(causal, causal.base_model(input_ids=ids, use_cache=False).last_hidden_state)
    rounding, wide = 64 * torch.finfo(ours.dtype).eps, theirs.float()
    if not torch.allclose(ours.float(), wide, rtol=rounding, atol=rounding * float(wide.abs().max())):
        raise UsageError(
            f"policy.model_name: this {causal.config.model_type} model rescales its logits in a way that hierarchical "
            "training does not know; take a Llama, Qwen, Gemma, Phi, Mistral or LFM2 model"
        )


def _in_chunks(head: Callable[[Tensor], Tensor], states: Tensor, ids: Tensor, chunk: int) -> Tensor:
    """Return log-probabilities (M,) of `ids` (M,), each predicted from its state (M, hidden)."""

    def of_chunk(some_states: Tensor, some_ids: Tensor) -> Tensor:
        return token_logprobs(head(some_states), some_ids)

    logprobs = [
        checkpoint(of_chunk, some_states, some_ids, use_reentrant=False, preserve_rng_state=False)
        for some_states, some_ids in zip(torch.split(states, chunk), torch.split(ids, chunk), strict=True)
    ]
    return torch.cat(logprobs)
