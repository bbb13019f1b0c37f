"""Text encoders of the critic and the value model: a small one over the policy's tokens, or a published one.

The policy's texts are token ids. The small encoder reads them directly; a published one has another vocabulary, so they
are decoded and tokenized again. Both read the last `hierarchical.critic.max_tokens` tokens, the newest part of a
conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from r2v.config import CriticConfig
from r2v.errors import UsageError
from r2v.hrl.algorithm.critic import DoubleCritic, MeanPooledEncoder, Text
from r2v.hrl.models.bases import SMALL
from r2v.randomness import seed_of
from r2v.storage.model_identity import CRITIC_MODEL, model_folder
from r2v.storage.weights import readable_model, require_all, require_tokenizer

TINY = "tiny"
HEAD_WIDTHS = (768, 768)
"""Widths inside heads over a published encoder."""
_HIDDEN, _LAYERS, _HEADS = 64, 2, 4


@dataclass(frozen=True, kw_only=True)
class CriticTokenizer:
    """Conversion of the policy's token ids to the critic's."""

    width: int
    """Number of last tokens kept of a text."""
    encode: Callable[[Sequence[int]], Sequence[int]]

    def encode_batch(self, texts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Return N texts of the policy as ids (N, width) int32, padded with zeros, and lengths (N,) int64, the form of
        the replay buffer."""
        ids, lengths = torch.zeros(len(texts), self.width, dtype=torch.int32), []
        for row, text in enumerate(texts):
            tail = list(self.encode(text))[-self.width :]
            ids[row, : len(tail)] = torch.tensor(tail, dtype=torch.int32)
            lengths.append(len(tail))
        return ids, torch.tensor(lengths, dtype=torch.long)


def padded_text(texts: tuple[Tensor, Tensor], device: Any = None) -> Text:
    """Return (ids, lengths) as the critic's input: ids (N, T) int64 and mask (N, T) bool, T the greatest length."""
    ids, lengths = texts
    longest = int(lengths.max())
    mask = torch.arange(longest) < lengths.cpu()[:, None]
    return ids[:, :longest].long().to(device), mask.to(device)


class ValueModel(nn.Module):
    """Value model of hints: a head over `backbone`, with states (N, `size`), that predicts a hint's reward from its
    prompt."""

    def __init__(self, backbone: nn.Module, size: int, hidden: Sequence[int]) -> None:
        super().__init__()
        widths = [size, *hidden]
        inner = [layer for i, width in enumerate(hidden) for layer in (nn.Linear(widths[i], width), nn.ReLU())]
        self.backbone, self.inner, self.last = backbone, nn.Sequential(*inner), nn.Linear(widths[-1], 1)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return values (N,) for ids (N, T) and a bool mask (N, T)."""
        state: Tensor = self.backbone(ids, mask)
        value: Tensor = self.last(self.inner(state.to(self.last.weight.dtype))).squeeze(-1)
        return value


def build_critic_tokenizer(settings: CriticConfig, tokenizer: Any) -> CriticTokenizer:
    """Return the critic's tokenizer. `tokenizer`: that of the policy."""
    if settings.model_name == TINY:
        return CriticTokenizer(width=settings.max_tokens, encode=lambda text: text)
    critic_tokenizer = _tokenizer(settings.model_name)

    def encode(text: Sequence[int]) -> list[int]:
        plain = tokenizer.decode(list(text), skip_special_tokens=True)
        ids: list[int] = critic_tokenizer(plain, truncation=True, max_length=settings.max_tokens)["input_ids"]
        return ids or [critic_tokenizer.unk_token_id]

    return CriticTokenizer(width=settings.max_tokens, encode=encode)


def build_critic(settings: CriticConfig, vocabulary: int, seed: int, device: str) -> DoubleCritic:
    """Return the double critic. Its heads, and the small encoder, are initialised from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed_of(seed, "critic"))
        backbone, size, hidden = _backbone(settings, vocabulary)
        critic = DoubleCritic(
            "cpu", backbone, size, hidden
        )  # drawn on the CPU, so that a GPU starts from the same weights
    _place(critic, device)
    return critic


def build_value(settings: CriticConfig, vocabulary: int, seed: int, device: str) -> ValueModel:
    """Return the value model of `guidance.baseline=value`, with its own encoder."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed_of(seed, "value"))
        model = ValueModel(*_backbone(settings, vocabulary))
    _place(model, device)
    return model


def _backbone(settings: CriticConfig, vocabulary: int) -> tuple[MeanPooledEncoder, int, tuple[int, ...]]:
    """Return the encoder, the size of its states, and the widths inside heads over it. Raises UsageError if
    `critic.max_tokens` exceeds its positions."""
    from transformers import BertConfig, BertModel

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
        return MeanPooledEncoder(BertModel(shape, add_pooling_layer=False)), _HIDDEN, (2 * _HIDDEN,)
    encoder = _encoder(settings.model_name)
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None  # trained for next-sentence prediction; the mean of all states is used
    longest = encoder.config.max_position_embeddings - (2 if "roberta" in encoder.config.model_type else 0)
    if settings.max_tokens > longest:
        raise UsageError(
            f"hierarchical.critic.max_tokens={settings.max_tokens}: {settings.model_name} reads at most "
            f"{longest} tokens; set {longest} or less"
        )
    return MeanPooledEncoder(encoder), encoder.config.hidden_size, HEAD_WIDTHS


def _place(model: nn.Module, device: str) -> None:
    small = sum(tensor.numel() for tensor in model.parameters()) < SMALL
    model.to(device=device, dtype=torch.float64 if small and device == "cpu" else torch.float32).eval()


def _tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    require_tokenizer(_cannot(name), name, _REMEDY)
    with readable_model(_cannot(name), _REMEDY):
        folder = model_folder(name, key=CRITIC_MODEL)
        return AutoTokenizer.from_pretrained(folder, truncation_side="left", trust_remote_code=False)


def _encoder(name: str) -> Any:
    from transformers import AutoModel

    options = {"dtype": torch.float32, "trust_remote_code": False, "output_loading_info": True}
    with readable_model(_cannot(name), _REMEDY):
        model, info = AutoModel.from_pretrained(model_folder(name, key=CRITIC_MODEL), **options)
        # Published encoders often lack the pooler, which is removed anyway.
        require_all(_cannot(name), [key for key in info["missing_keys"] if "pooler" not in key], _REMEDY)
        return model


_REMEDY = "name tiny, a directory, or an encoder that is downloaded or can be"


def _cannot(name: str) -> str:
    return f"{CRITIC_MODEL}={name}: cannot load it"
