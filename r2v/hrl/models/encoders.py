"""What critic and value function read with: a small encoder of the policy's own tokens, or a published one.

A policy's texts come as its token ids. The small encoder takes them as they are; a published one has a vocabulary of
its own, so they are decoded and encoded again. Of either the last `hierarchical.critic.max_tokens` are read, for the
newest of a conversation stands last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from r2v.config import CriticConfig
from r2v.errors import InputError, UsageError
from r2v.hrl.algorithm.critic import DoubleCritic, MeanState, Text
from r2v.hrl.models.bases import SMALL
from r2v.randomness import seed_of

TINY = "tiny"
_HIDDEN, _LAYERS, _HEADS = 64, 2, 4


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Turns token ids of a policy into what the critic is called with."""

    width: int
    """Tokens read of a text."""
    encode: Callable[[Sequence[int]], Sequence[int]]

    def rows(self, texts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """N texts of the policy as (ids (N, width) int32, zeros behind them; lengths (N,) int64), as a replay keeps
        them."""
        ids, lengths = torch.zeros(len(texts), self.width, dtype=torch.int32), []
        for row, text in enumerate(texts):
            own = list(self.encode(text))[-self.width :]
            ids[row, : len(own)] = torch.tensor(own, dtype=torch.int32)
            lengths.append(len(own))
        return ids, torch.tensor(lengths, dtype=torch.long)


def text_of(rows: tuple[Tensor, Tensor], device: Any = None) -> Text:
    """Rows as a critic reads them: (ids (N, T) int64, mask (N, T) bool), T the longest of them."""
    ids, lengths = rows
    longest = int(lengths.max())
    mask = torch.arange(longest) < lengths.cpu()[:, None]
    return ids[:, :longest].long().to(device), mask.to(device)


class ValueModel(nn.Module):
    """What is to be expected of a hint, given all that was said: one number upon a backbone's state (N, `size`)."""

    def __init__(self, backbone: nn.Module, size: int, hidden: Sequence[int]) -> None:
        super().__init__()
        widths = [size, *hidden]
        inner = [layer for i, width in enumerate(hidden) for layer in (nn.Linear(widths[i], width), nn.ReLU())]
        self.backbone, self.inner, self.last = backbone, nn.Sequential(*inner), nn.Linear(widths[-1], 1)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """(N, T) ids and bool mask -> (N,)."""
        state: Tensor = self.backbone(ids, mask)
        value: Tensor = self.last(self.inner(state.to(self.last.weight.dtype))).squeeze(-1)
        return value


def build_reader(settings: CriticConfig, tokenizer: Any) -> Reader:
    """The reader of `hierarchical.critic`, for texts of the policy whose tokenizer this is."""
    if settings.model_name == TINY:
        return Reader(width=settings.max_tokens, encode=lambda text: text)
    from transformers import AutoTokenizer

    own = _found(AutoTokenizer, settings.model_name, truncation_side="left")

    def encode(text: Sequence[int]) -> list[int]:
        said = tokenizer.decode(list(text), skip_special_tokens=True)
        ids: list[int] = own(said, truncation=True, max_length=settings.max_tokens)["input_ids"]
        return ids or [own.unk_token_id]

    return Reader(width=settings.max_tokens, encode=encode)


def build_critic(settings: CriticConfig, vocabulary: int, seed: int, device: str) -> DoubleCritic:
    """The double critic, its weights those published or drawn from the seed; its heads always are."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed_of(seed, "critic"))
        backbone, size, hidden = _backbone(settings, vocabulary)
        critic = DoubleCritic(backbone, size, hidden)
    _place(critic, device)
    return critic


def build_value(settings: CriticConfig, vocabulary: int, seed: int, device: str) -> ValueModel:
    """The value function of `guidance.baseline=value`, over an encoder of its own."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed_of(seed, "value"))
        model = ValueModel(*_backbone(settings, vocabulary))
    _place(model, device)
    return model


def _backbone(settings: CriticConfig, vocabulary: int) -> tuple[MeanState, int, tuple[int, ...]]:
    """The encoder, the size of its states, and the widths inside the heads upon it."""
    from transformers import AutoModel, BertConfig, BertModel

    if settings.model_name == TINY:
        shape = BertConfig(
            vocab_size=vocabulary,
            hidden_size=_HIDDEN,
            num_hidden_layers=_LAYERS,
            num_attention_heads=_HEADS,
            intermediate_size=2 * _HIDDEN,
            type_vocab_size=1,
            max_position_embeddings=settings.max_tokens,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        return MeanState(BertModel(shape, add_pooling_layer=False)), _HIDDEN, (2 * _HIDDEN,)
    encoder = _found(AutoModel, settings.model_name, dtype=torch.float32)
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None  # made for another task; the mean of all states is read
    longest = encoder.config.max_position_embeddings - (2 if "roberta" in encoder.config.model_type else 0)
    if settings.max_tokens > longest:
        raise UsageError(
            f"hierarchical.critic.max_tokens={settings.max_tokens}: {settings.model_name} reads at most "
            f"{longest} tokens; set {longest} or less"
        )
    return MeanState(encoder), encoder.config.hidden_size, (768, 768)


def _place(model: nn.Module, device: str) -> None:
    small = sum(tensor.numel() for tensor in model.parameters()) < SMALL
    model.to(device=device, dtype=torch.float64 if small and device == "cpu" else torch.float32).eval()


def _found(kind: Any, name: str, **options: Any) -> Any:
    try:
        return kind.from_pretrained(name, **options)
    except (OSError, ValueError) as error:
        said = str(error).strip().split("\n")[0]
        raise InputError(
            f"hierarchical.critic.model_name={name}: cannot load it ({said}); name tiny, a directory, or "
            "an encoder that is downloaded or can be"
        ) from error
