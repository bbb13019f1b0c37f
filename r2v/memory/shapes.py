"""Model shapes: the numbers of parameters and the matrices of a model, from its config.json.

    shape = shape_of("meta-llama/Llama-3.2-3B")
    shape.parameters                # 3 212 749 824
    shape.lora_parameters(16)       # 24 313 856: adapters on every linear layer
    shape.kv_bytes_per_token(2)     # 114 688

Families: llama, mistral, qwen2, qwen3 and lfm2 (decoders), roberta (encoder; a critic). R2V's bundled student is an
lfm2. Only config.json is read.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from r2v.errors import InputError, UsageError, nearest
from r2v.memory.model_registry import MODEL_CONFIGS, ModelConfigValues, lookup
from r2v.storage.weights import BUNDLED, adapters_alone, base_of

LayerKind = Literal["attention", "conv", "encoder"]
DECODERS = ("llama", "mistral", "qwen2", "qwen3", "lfm2")
ENCODERS = ("roberta", "xlm-roberta")
HEAD_WIDTH = 768
"""Hidden width of a critic's head."""


@dataclass(frozen=True, kw_only=True)
class LinearShape:
    """A weight matrix, with its bias where it has one."""

    name: str
    inside: int
    outside: int
    bias: bool = False

    @property
    def weights(self) -> int:
        """Entries of the matrix."""
        return self.inside * self.outside

    @property
    def parameters(self) -> int:
        """Entries of the matrix and its bias."""
        return self.weights + (self.outside if self.bias else 0)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a transformer. `kinds` has the kind of each layer, first to last."""

    name: str
    family: str
    hidden: int
    kinds: tuple[LayerKind, ...]
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int
    tied: bool
    qkv_bias: bool = False
    qk_norm: bool = False
    conv_kernel: int = 0
    positions: int = 0
    token_types: int = 0
    dtype: str = "bfloat16"
    """Type of the saved weights."""
    heads_on_top: tuple[LinearShape, ...] = ()
    """Layers on the last hidden state: a critic's Q and V heads, a verifier's score."""

    @property
    def encoder(self) -> bool:
        """Whether it only encodes: no logits, no KV cache."""
        return self.family in ENCODERS

    def linears(self, kind: LayerKind) -> tuple[LinearShape, ...]:
        """The matrices of one layer, in the order they are used."""
        h, q, kv, inner = self.hidden, self.heads * self.head_dim, self.kv_heads * self.head_dim, self.inner
        bias = self.qkv_bias
        if kind == "encoder":
            return tuple(
                LinearShape(name=name, inside=i, outside=o, bias=True)
                for name, i, o in (
                    ("q", h, h),
                    ("k", h, h),
                    ("v", h, h),
                    ("o", h, h),
                    ("up", h, inner),
                    ("down", inner, h),
                )
            )
        mixing = (
            (LinearShape(name="in", inside=h, outside=3 * h), LinearShape(name="out", inside=h, outside=h))
            if kind == "conv"
            else (
                LinearShape(name="q", inside=h, outside=q, bias=bias),
                LinearShape(name="k", inside=h, outside=kv, bias=bias),
                LinearShape(name="v", inside=h, outside=kv, bias=bias),
                LinearShape(name="o", inside=q, outside=h),
            )
        )
        return (
            *mixing,
            LinearShape(name="gate", inside=h, outside=inner),
            LinearShape(name="up", inside=h, outside=inner),
            LinearShape(name="down", inside=inner, outside=h),
        )

    def small(self, kind: LayerKind) -> int:
        """Parameters of one layer outside its matrices: norms, and the kernel of a short convolution."""
        if kind == "encoder":
            return 4 * self.hidden
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm and kind == "attention" else 0)
        return norms + (self.conv_kernel * self.hidden if kind == "conv" else 0)

    def layer_parameters(self, kind: LayerKind) -> int:
        """Parameters of one layer."""
        return sum(one.parameters for one in self.linears(kind)) + self.small(kind)

    @property
    def embedding(self) -> int:
        """Parameters of the token embedding."""
        return self.vocab * self.hidden

    @property
    def outside(self) -> int:
        """Parameters outside the layers: embeddings, last norm, output embedding, heads on top."""
        extra = sum(one.parameters for one in self.heads_on_top)
        if self.encoder:
            tables = self.embedding + (self.positions + self.token_types) * self.hidden
            return tables + 2 * self.hidden + self.hidden * (self.hidden + 1) + extra
        return self.embedding * (1 if self.tied else 2) + self.hidden + extra

    @property
    def parameters(self) -> int:
        """All parameters (an encoder's pooler among them, as transformers loads it)."""
        return self.outside + sum(self.layer_parameters(kind) for kind in self.kinds)

    @property
    def matrix_weights(self) -> int:
        """Entries of the layers' matrices: what 4-bit loading packs and adapters adapt."""
        return sum(one.weights for kind in self.kinds for one in self.linears(kind))

    def lora_parameters(self, rank: int) -> int:
        """Parameters of adapters of this rank on every linear layer: r * (in + out) each."""
        return rank * sum(one.inside + one.outside for kind in self.kinds for one in self.linears(kind))

    def kv_bytes_per_token(self, width: int) -> int:
        """Bytes that one token adds to the KV cache, at `width` bytes a number."""
        return 2 * self.kv_heads * self.head_dim * width * Counter(self.kinds)["attention"]

    @property
    def fixed_cache_entries(self) -> int:
        """Cached numbers of a sequence of any length: the windows of the short convolutions."""
        return self.hidden * self.conv_kernel * Counter(self.kinds)["conv"]


def from_config(values: Mapping[str, Any], name: str = "model") -> Shape:
    """The shape that a config.json describes. Raises InputError where it lacks a size, UsageError for a family
    whose arithmetic is not known."""
    family = str(values.get("model_type"))
    if family not in DECODERS + ENCODERS:
        raise UsageError(f"{name}: model_type {family} cannot be planned for; {nearest(family, DECODERS + ENCODERS)}")
    try:
        hidden, layers = int(values["hidden_size"]), int(values["num_hidden_layers"])
        heads, vocab = int(values["num_attention_heads"]), int(values["vocab_size"])
        inner = _inner(values, family)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{name}: its config.json has no usable {error}; it must say hidden_size, "
            "num_hidden_layers, num_attention_heads, intermediate_size and vocab_size"
        ) from None
    encoder = family in ENCODERS
    return Shape(
        name=name,
        family=family,
        hidden=hidden,
        kinds=_kinds(values, family, layers),
        heads=heads,
        kv_heads=heads if encoder else int(values.get("num_key_value_heads") or heads),
        head_dim=int(values.get("head_dim") or hidden // heads),
        inner=inner,
        vocab=vocab,
        tied=bool(values.get("tie_word_embeddings", family == "lfm2")) and not encoder,
        qkv_bias=family == "qwen2" or bool(values.get("attention_bias")),
        qk_norm=family in ("qwen3", "lfm2"),
        conv_kernel=int(values.get("conv_L_cache", 3)) if family == "lfm2" else 0,
        positions=int(values.get("max_position_embeddings", 514)) if encoder else 0,
        token_types=int(values.get("type_vocab_size", 1)) if encoder else 0,
        dtype=str(values.get("dtype") or values.get("torch_dtype") or "float32"),
    )


def shape_of(model: str) -> Shape:
    """The shape of a model by name, as `values_of` finds it."""
    return from_config(values_of(model), model)


def values_of(model: str) -> ModelConfigValues:
    """The config.json of a bundled model, of a directory (of adapters: their base's), of a model in the hub's cache, or
    of one in the registry. Raises InputError where there is none."""
    folder = BUNDLED.get(model) or Path(model).expanduser()
    if adapters_alone(folder):
        return values_of(base_of(folder))
    path = folder / "config.json" if folder.is_dir() else _cached(model)
    if path is None or not path.is_file():
        values = lookup(model)
        if values is None:
            raise InputError(
                f"no shape of {model}: not a directory with a config.json, not in the hub's cache, not "
                f"known by name; {nearest(model, [*BUNDLED, *MODEL_CONFIGS])}"
            )
        return values
    try:
        loaded = json.loads(path.read_text())
    except (ValueError, OSError) as error:
        raise InputError(f"{path}: not a JSON object ({error})") from None
    if not isinstance(loaded, dict):
        raise InputError(f"{path}: not a JSON object")
    return loaded


def _cached(model: str) -> Path | None:
    hub = os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME", "~/.cache/huggingface")) / "hub"
    folder = Path(hub).expanduser() / f"models--{model.replace('/', '--')}" / "snapshots"
    snapshots = sorted(folder.glob("*/config.json")) if "/" in model else []
    return snapshots[-1] if snapshots else None


def _kinds(values: Mapping[str, Any], family: str, layers: int) -> tuple[LayerKind, ...]:
    kind: LayerKind = "encoder" if family in ENCODERS else "attention"
    if family != "lfm2":
        return tuple(kind for _ in range(layers))
    attention = values.get("full_attn_idxs") or range(layers)
    types = values.get("layer_types") or ["attention" if at in attention else "conv" for at in range(layers)]
    return tuple("conv" if one == "conv" else "attention" for one in types)


def _inner(values: Mapping[str, Any], family: str) -> int:
    """The width inside the feed-forward; LFM2 takes two thirds of it, rounded up (modeling_lfm2.Lfm2MLP)."""
    inner = int(values["intermediate_size"])
    if family == "lfm2" and values.get("block_auto_adjust_ff_dim", True):
        step = int(values.get("block_multiple_of", 256))
        inner = int(values.get("block_ffn_dim_multiplier", 1.0) * int(2 * inner / 3))
        inner = step * ((inner + step - 1) // step)
    return inner


def critic_heads(hidden: int) -> tuple[LinearShape, ...]:
    """The heads of a double critic: two Q on [state; action] and two V on the state as in ArCHer (arXiv 2402.19446),
    and a baseline on the state (together 7.09 M parameters on roberta-base)."""
    return (*value_head(2 * hidden), *value_head(2 * hidden), *(one for _ in range(3) for one in value_head(hidden)))


def value_head(inside: int) -> tuple[LinearShape, ...]:
    """One number from `inside` ones, through two hidden layers of HEAD_WIDTH."""
    sizes = (inside, HEAD_WIDTH, HEAD_WIDTH, 1)
    return tuple(
        LinearShape(name="head", inside=i, outside=o, bias=True) for i, o in zip(sizes, sizes[1:], strict=False)
    )


def score_head(hidden: int) -> tuple[LinearShape, ...]:
    """One number from the hidden state: a verifier's."""
    return (LinearShape(name="score", inside=hidden, outside=1, bias=True),)
