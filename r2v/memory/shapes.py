"""Model shapes: the numbers of parameters and the matrices of a model, from its config.json.

    shape = shape_of("meta-llama/Llama-3.2-3B")
    shape.parameters                # 3 212 749 824
    shape.lora_parameters(16)       # 24 313 856: adapters on every linear layer
    shape.kv_bytes_per_token(2)     # 114 688

Families: `DECODERS` and `ENCODERS` (a critic). R2V's bundled student is an lfm2. Only config.json is read. A model that
reads images too is a decoder with a tower beside it, which is loaded and never used.

A mixture of experts keeps the matrices of all its experts in one three-dimensional parameter. Adapters on it have a
rank for each expert, and are added to a copy of all of it whenever it runs (peft's ParamWrapper); 4-bit loading leaves
it as wide as it was saved.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from r2v.constraints import shown
from r2v.errors import InputError, UsageError, nearest
from r2v.memory.families import (
    DECODERS,
    ENCODERS,
    GEMMA3_DEFAULTS,
    GEMMAS,
    LayerKind,
    image_tower,
    inner_width,
    layer_kinds,
    mixture_sizes,
    sliding_window,
)
from r2v.memory.model_registry import KNOWN_MODELS, MODEL_CONFIGS, ModelConfigValues, lookup
from r2v.storage.model_identity import hub_repository
from r2v.storage.weights import BUNDLED, adapters_alone, base_of

HEAD_WIDTH = 768
"""Hidden width of a critic's head."""
_WITH_ATTENTION = ("attention", "mixture")


@dataclass(frozen=True, kw_only=True)
class LinearShape:
    """A weight matrix, with its bias where it has one."""

    name: str
    inside: int
    outside: int
    bias: bool = False
    copies: int = 1
    """How many there are: one for each expert."""
    linear: bool = True
    """Whether it is a module of its own (nn.Linear), which can be packed."""
    rank: int = 1
    """Times the configured rank, that of its adapters: 2 where two matrices are one parameter."""

    @property
    def weights(self) -> int:
        """Entries of the matrix, of all its copies."""
        return self.copies * self.inside * self.outside

    @property
    def parameters(self) -> int:
        """Entries of the matrix and its bias."""
        return self.weights + (self.outside if self.bias else 0)

    def lora_parameters(self, rank: int) -> int:
        """Parameters of its adapters: r * (in + out) of each copy."""
        return self.copies * self.rank * rank * (self.inside + self.outside)


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
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    fused: bool = False
    """Whether query, key and value are one matrix, and gate and up another (phi3)."""
    experts: int = 0
    """Experts of a mixture layer."""
    experts_per_token: int = 0
    expert_inner: int = 0
    """Width inside the feed-forward of an expert."""
    window: int = 0
    """Tokens that a sliding layer looks back on, and its cache keeps while tokens are added."""
    sliding: int = 0
    """How many of the layers are sliding ones."""
    softcap: bool = False
    """Whether attention scores and logits are capped by a tanh (gemma2), which no fused kernel does."""
    conv_kernel: int = 0
    positions: int = 0
    token_types: int = 0
    elsewhere: int = 0
    """Parameters that text never passes: the tower of a model that reads images too."""
    dtype: str = "bfloat16"
    """Type of the saved weights."""
    heads_on_top: tuple[LinearShape, ...] = ()
    """Layers on the last hidden state: a critic's Q and V heads, a verifier's score."""

    @property
    def encoder(self) -> bool:
        """Whether it only encodes: no logits, no KV cache."""
        return self.family in ENCODERS

    @property
    def gemma(self) -> bool:
        """Whether norms multiply in float32 and the embedding is scaled."""
        return self.family in GEMMAS

    @property
    def post_norms(self) -> bool:
        """Whether a norm follows attention and feed-forward too."""
        return self.gemma and self.family != "gemma"

    def linears(self, kind: LayerKind) -> tuple[LinearShape, ...]:
        """The matrices of one layer, in the order they are used."""
        return _matrices(self, kind)

    def small(self, kind: LayerKind) -> int:
        """Parameters of one layer outside its matrices: norms, and the kernel of a short convolution."""
        if kind == "encoder":
            return 4 * self.hidden
        norms = (4 if self.post_norms else 2) * self.hidden
        norms += 2 * self.head_dim if self.qk_norm and kind in _WITH_ATTENTION else 0
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
        return self.embedding * (1 if self.tied else 2) + self.hidden + extra + self.elsewhere

    @property
    def parameters(self) -> int:
        """All parameters (an encoder's pooler among them, as transformers loads it)."""
        return self.outside + sum(self.layer_parameters(kind) for kind in self.kinds)

    @property
    def parameters_per_token(self) -> int:
        """Parameters that one token is multiplied with: of a mixture's experts those that it is sent to."""
        unused = (self.experts - self.experts_per_token) * 3 * self.hidden * self.expert_inner
        matrices = sum(one.weights for kind in self.kinds for one in self.linears(kind))
        return matrices - unused * Counter(self.kinds)["mixture"] + (0 if self.encoder else self.embedding)

    @property
    def matrix_weights(self) -> int:
        """Entries of the layers' linear modules: what 4-bit loading packs."""
        return sum(one.weights for kind in self.kinds for one in self.linears(kind) if one.linear)

    def lora_parameters(self, rank: int) -> int:
        """Parameters of adapters of this rank on every matrix of the layers (`LinearShape.lora_parameters`)."""
        return sum(one.lora_parameters(rank) for kind in self.kinds for one in self.linears(kind))

    def kv_bytes_per_token(self, width: int) -> int:
        """Bytes that one token adds to the KV cache, at `width` bytes a number."""
        return self._layer_cache(width) * sum(kind in _WITH_ATTENTION for kind in self.kinds)

    def kv_bytes(self, tokens: int, width: int) -> int:
        """Bytes of the KV cache of a sequence while tokens are added: sliding layers keep their window alone."""
        beyond = max(0, tokens - self.window) if self.sliding else 0
        return tokens * self.kv_bytes_per_token(width) - beyond * self.sliding * self._layer_cache(width)

    def _layer_cache(self, width: int) -> int:
        return 2 * self.kv_heads * self.head_dim * width

    @property
    def fixed_cache_entries(self) -> int:
        """Cached numbers of a sequence of any length: the windows of the short convolutions."""
        return self.hidden * self.conv_kernel * Counter(self.kinds)["conv"]


def _matrices(shape: Shape, kind: LayerKind) -> tuple[LinearShape, ...]:
    """The matrices of one layer, in the order they are used."""
    if kind == "encoder":
        return tuple(_encoder(shape))
    mixing = _convolution(shape) if kind == "conv" else _attention(shape)
    return (*mixing, *(_experts(shape) if kind == "mixture" else _feed_forward(shape)))


def _encoder(shape: Shape) -> Iterator[LinearShape]:
    h, inner = shape.hidden, shape.inner
    sizes = (("q", h, h), ("k", h, h), ("v", h, h), ("o", h, h), ("up", h, inner), ("down", inner, h))
    for name, inside, outside in sizes:
        yield LinearShape(name=name, inside=inside, outside=outside, bias=True)


def _convolution(shape: Shape) -> Iterator[LinearShape]:
    yield LinearShape(name="in", inside=shape.hidden, outside=3 * shape.hidden)
    yield LinearShape(name="out", inside=shape.hidden, outside=shape.hidden)


def _attention(shape: Shape) -> Iterator[LinearShape]:
    h, q, kv, bias = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.qkv_bias
    if shape.fused:
        yield LinearShape(name="qkv", inside=h, outside=q + 2 * kv, bias=bias)
    else:
        yield LinearShape(name="q", inside=h, outside=q, bias=bias)
        yield LinearShape(name="k", inside=h, outside=kv, bias=bias)
        yield LinearShape(name="v", inside=h, outside=kv, bias=bias)
    yield LinearShape(name="o", inside=q, outside=h, bias=shape.out_bias)


def _feed_forward(shape: Shape) -> Iterator[LinearShape]:
    h, inner, bias = shape.hidden, shape.inner, shape.mlp_bias
    if shape.fused:
        yield LinearShape(name="gate_up", inside=h, outside=2 * inner)
    else:
        yield LinearShape(name="gate", inside=h, outside=inner, bias=bias)
        yield LinearShape(name="up", inside=h, outside=inner, bias=bias)
    yield LinearShape(name="down", inside=inner, outside=h, bias=bias)


def _experts(shape: Shape) -> Iterator[LinearShape]:
    h, inner, count = shape.hidden, shape.expert_inner, shape.experts
    yield LinearShape(name="router", inside=h, outside=count, linear=False)
    yield LinearShape(name="experts gate_up", inside=h, outside=2 * inner, copies=count, linear=False, rank=2)
    yield LinearShape(name="experts down", inside=inner, outside=h, copies=count, linear=False)


def from_config(values: Mapping[str, Any], name: str = "model") -> Shape:
    """The shape that a config.json describes. Raises InputError where it lacks a size, UsageError for quantized weights
    and for a family whose arithmetic is not known."""
    require_unquantized(values, name)
    family = str(values.get("model_type"))
    if family not in DECODERS + ENCODERS:
        raise UsageError(
            f"{name}: its config.json has the model_type {shown(family)}, whose layers r2v plan does not know; it "
            f"knows {', '.join(DECODERS + ENCODERS)}"
        )
    if isinstance(values.get("text_config"), Mapping):
        text = {
            **values["text_config"],
            "model_type": family,
            "dtype": values.get("dtype") or values.get("torch_dtype"),
        }
        return replace(from_config(text, name), elsewhere=image_tower(values, name))
    values = GEMMA3_DEFAULTS | dict(values) if family.startswith("gemma3") else values
    try:
        hidden, layers = int(values["hidden_size"]), int(values["num_hidden_layers"])
        heads, vocab = int(values["num_attention_heads"]), int(values["vocab_size"])
        inner = inner_width(values, family)
        experts, windows = mixture_sizes(values, family), sliding_window(values, family, layers)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{name}: its config.json has no usable {error}; it must say hidden_size, "
            "num_hidden_layers, num_attention_heads, intermediate_size and vocab_size"
        ) from None
    encoder, bias = family in ENCODERS, bool(values.get("attention_bias"))
    return Shape(
        name=name,
        family=family,
        hidden=hidden,
        kinds=layer_kinds(values, family, layers),
        heads=heads,
        kv_heads=heads if encoder else int(values.get("num_key_value_heads") or heads),
        head_dim=int(values.get("head_dim") or hidden // heads),
        inner=inner,
        vocab=vocab,
        tied=bool(values.get("tie_word_embeddings", family in ("lfm2", *GEMMAS))) and not encoder,
        qkv_bias=family == "qwen2" or bias,
        out_bias=bias and family != "qwen2",
        mlp_bias=bool(values.get("mlp_bias")) and family == "llama",
        qk_norm=family in ("qwen3", "qwen3_moe", "gemma3", "gemma3_text", "lfm2"),
        fused=family == "phi3",
        experts=experts.get("experts", 0),
        experts_per_token=experts.get("experts_per_token", 0),
        expert_inner=experts.get("expert_inner", 0),
        window=windows.get("window", 0),
        sliding=windows.get("sliding", 0),
        softcap=family == "gemma2",
        conv_kernel=int(values.get("conv_L_cache", 3)) if family == "lfm2" else 0,
        positions=int(values.get("max_position_embeddings", 514)) if encoder else 0,
        token_types=int(values.get("type_vocab_size", 1)) if encoder else 0,
        dtype=str(values.get("dtype") or values.get("torch_dtype") or "float32"),
    )


def require_unquantized(values: Mapping[str, Any], name: str) -> None:
    """Raise UsageError where a config.json says that its weights are quantized."""
    if quantization := values.get("quantization_config"):
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
        raise UsageError(
            f"{name}: its config.json has a quantization_config ({shown(method or 'of no method')}); R2V trains and "
            "plays weights that are not quantized, or that it packs itself as bitsandbytes nf4 "
            "(policy.load_in_4bit=true): name the model that this one was quantized from"
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
                f"known by name{_like(model)}; known are {KNOWN_MODELS}; of any other model name a directory that "
                "holds its config.json (no weights are needed)"
            )
        return values
    try:
        loaded = json.loads(path.read_text())
    except (ValueError, OSError) as error:
        raise InputError(f"{path}: not a JSON object ({error})") from None
    if not isinstance(loaded, dict):
        raise InputError(f"{path}: not a JSON object")
    return loaded


def _like(model: str) -> str:
    """A name that was probably meant, where there is one: it differs in letters, never in a size."""
    hint = nearest(model, [*BUNDLED, *MODEL_CONFIGS])
    return f"; {hint}" if hint.startswith("did you mean") and "/" in model else ""


def _cached(model: str) -> Path | None:
    folder = hub_repository(model) / "snapshots"
    snapshots = sorted(folder.glob("*/config.json")) if "/" in model else []
    return snapshots[-1] if snapshots else None


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
