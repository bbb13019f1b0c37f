"""Log-probabilities of the tokens that were generated, and of nothing else.

The logits of a large vocabulary are the peak of an update: 8 rows of 1,024 tokens and 128,256 words make 12 GiB of
them (facts/hrl.md 0.3). So the language-model head sees the states of completion tokens only, `chunk` at a time, and
makes its logits again on the way back; `again` has the layers do so too. Tokens are stored, never made again from
text, and a prompt is followed by its completion without a gap: pads stand on one side of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from r2v.errors import InputError, UsageError

_RESHAPED = ("final_logit_softcapping", "logit_scale", "logits_scaling")
"""Settings of models that change the logits after the head."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """N sequences padded to T: all tensors (N, T)."""

    ids: Tensor
    attention: Tensor
    """Where tokens are, bool."""
    positions: Tensor
    completion: Tensor
    """Where tokens are that were generated, bool."""


def lay(
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    side: Literal["left", "right"] = "right",
    device: Any = None,
) -> Rows:
    """Token ids in a rectangle, pads on one `side`. Completions hold their EOS, where one was generated.

    Raises InputError for an empty prompt: nothing would predict the first token after it.
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
        begin = ids.shape[1] - lengths[row] if side == "left" else 0
        end = begin + lengths[row]
        ids[row, begin:end] = torch.tensor([*prompt, *completion])
        attention[row, begin:end] = True
        completion_mask[row, end - len(completion) : end] = True
    positions = (attention.cumsum(-1) - 1).clamp_min(0)
    return Rows(
        ids=ids.to(device),
        attention=attention.to(device),
        positions=positions.to(device),
        completion=completion_mask.to(device),
    )


def of_tokens(logits: Tensor, ids: Tensor) -> Tensor:
    """log softmax(logits)[ids]: (..., V), (...) -> (...). Never -inf for finite logits; at least in float32."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return wide.gather(-1, ids[..., None]).squeeze(-1) - wide.logsumexp(-1)


def of_completions(model: Any, rows: Rows, chunk: int = 1024, *, again: bool = False) -> Tensor:
    """(N, T): the log-probability of each completion token given all before it, 0 elsewhere.

    `model` is a transformers causal model, with or without adapters, which are used as they are set. Only
    `chunk * V` logits exist at a time; `again` keeps of each layer no more than what it was given, and runs it again
    in backward. Raises UsageError for models that do more with logits than their head does, or cannot run again.
    """
    whole = model.get_base_model() if hasattr(model, "peft_config") else model
    for setting in _RESHAPED:
        if getattr(whole.config, setting, None) not in (None, 1.0):
            raise UsageError(
                f"policy.model_name: {setting} of this {whole.config.model_type} model rescales logits, "
                "which hierarchical training does not; take a Llama, Qwen, Mistral or LFM2 model"
            )
    with _layers_again(whole) if again else nullcontext():
        states = whole.base_model(
            input_ids=rows.ids, attention_mask=rows.attention.long(), position_ids=rows.positions, use_cache=False
        ).last_hidden_state
    row, place = rows.completion.nonzero(as_tuple=True)
    flat = _in_chunks(whole.get_output_embeddings(), states[row, place - 1], rows.ids[row, place], chunk)
    return flat.new_zeros(rows.ids.shape).index_put((row, place), flat)


@contextmanager
def _layers_again(model: Any) -> Iterator[None]:
    """Gradient checkpointing in the forward pass of this block. transformers has it in training mode only, so the
    layers alone are in that mode: what they are made of is not, and has no dropout."""
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise UsageError(
            f"hierarchical.gradient_checkpointing=true: no layer of this {model.config.model_type} model "
            "can run again in backward; set it to false"
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


def _in_chunks(head: Any, states: Tensor, ids: Tensor, chunk: int) -> Tensor:
    """(M,) log-probabilities of `ids` (M,), each predicted from its state (M, hidden)."""

    def some(part: Tensor, wanted: Tensor) -> Tensor:
        return of_tokens(head(part), wanted)

    parts = [
        checkpoint(some, part, wanted, use_reentrant=False, preserve_rng_state=False)
        for part, wanted in zip(torch.split(states, chunk), torch.split(ids, chunk), strict=True)
    ]
    return torch.cat(parts)
