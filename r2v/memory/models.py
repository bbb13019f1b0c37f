"""Models by name: config.json and parameter counts. No torch, no weights, no network.

model = known_model("meta-llama/Llama-3.2-3B")
model.sizes.parameters          # 3 212 749 824, counted in the model itself (`r2v.memory.store`)
estimated(model.values)         # from config.json alone, within some percent
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r2v.constraints import shown
from r2v.errors import InputError, UsageError, nearest
from r2v.memory import store
from r2v.memory.measurement import ENCODERS, ModelSizes
from r2v.memory.model_registry import KNOWN_MODELS, MODEL_CONFIGS, ModelConfigValues, lookup
from r2v.storage.model_identity import hub_repository
from r2v.storage.weights import BUNDLED, adapters_alone, base_of

_OF_FAMILIES = {"gemma3": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262_208}}
"""Default sizes of transformers' configuration classes, which a config.json may omit."""

_MOST_LAYERS = 10_000
"""Largest number of layers of a measured model, which are all built, without weights."""


@dataclass(frozen=True, kw_only=True)
class KnownModel:
    """Model with its configuration and parameter counts."""

    name: str
    values: ModelConfigValues
    """Values of its config.json."""
    sizes: ModelSizes

    @property
    def encoder(self) -> bool:
        """True for an encoder: no logits, no KV cache."""
        return self.values.get("model_type") in ENCODERS

    @property
    def dtype(self) -> str:
        """Type of the saved weights."""
        return str(self.values.get("dtype") or self.values.get("torch_dtype") or "float32")

    @property
    def window(self) -> int | None:
        """Window of sliding-attention layers in tokens; None without such layers."""
        window = (self.values.get("text_config") or self.values).get("sliding_window")
        return int(window) if window else None


@dataclass(frozen=True, kw_only=True)
class ParameterCounts:
    """Numbers of a model's parameters, in total and multiplied with one token."""

    total: float
    per_token: float


def known_model(model: str, measure: store.Measure | None = None) -> KnownModel:
    """Return the model of a name or folder, as found by `values_of`. Raise InputError if its sizes are not stored and
    `measure` is None."""
    values = values_of(model)
    require_unquantized(values, model)
    layers = (values.get("text_config") or values).get("num_hidden_layers")
    if isinstance(layers, int) and layers > _MOST_LAYERS:
        raise InputError(f"{model}: its config.json has num_hidden_layers={layers}, allowed: up to {_MOST_LAYERS}")
    return KnownModel(name=model, values=values, sizes=store.sizes(values, model, measure))


def counted(model: str) -> ParameterCounts:
    """Return the stored parameter counts of a model, else the `estimated` ones."""
    values = values_of(model)
    require_unquantized(values, model)
    sizes = store.stored_sizes(values)
    if sizes is None:
        return estimated(values, model)
    return ParameterCounts(total=sizes.parameters, per_token=sizes.per_token)


def estimated(values: Mapping[str, Any], name: str = "model") -> ParameterCounts:
    """Return parameter counts from the sizes in a config.json: attention, gated feed-forward, experts, embeddings.
    Raise InputError if a size is missing."""
    text = {**_OF_FAMILIES.get(str(values.get("model_type")), {}), **(values.get("text_config") or values)}
    try:
        hidden, layers, vocab = (int(text[key]) for key in ("hidden_size", "num_hidden_layers", "vocab_size"))
        heads, inner = int(text["num_attention_heads"]), int(text["intermediate_size"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{name}: its config.json has no usable {error}; it must say hidden_size, num_hidden_layers, "
            "num_attention_heads, intermediate_size and vocab_size"
        ) from None
    if values.get("model_type") == "lfm2" and text.get("block_auto_adjust_ff_dim", True):
        inner = 2 * inner // 3
    width = int(text.get("head_dim") or hidden // heads)
    keys = int(text.get("num_key_value_heads") or heads)
    experts = int(text.get("num_local_experts") or text.get("num_experts") or 1)
    chosen = int(text.get("num_experts_per_tok") or 1) if experts > 1 else 1
    attention = 2 * hidden * width * (heads + keys)
    forward = (
        (2 if values.get("model_type") in ENCODERS else 3) * hidden * int(text.get("moe_intermediate_size") or inner)
    )
    table = vocab * hidden
    head = 0 if text.get("tie_word_embeddings", True) else table
    return ParameterCounts(
        total=layers * (attention + experts * forward) + table + head,
        per_token=layers * (attention + chosen * forward) + (0 if values.get("model_type") in ENCODERS else table),
    )


def require_unquantized(values: Mapping[str, Any], name: str) -> None:
    """Raise UsageError if a config.json is of quantized weights."""
    if quantization := values.get("quantization_config"):
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
        raise UsageError(
            f"{name}: its config.json has a quantization_config ({shown(method or 'of no method')}); R2V trains and "
            "plays weights that are not quantized, or that it packs itself as bitsandbytes nf4 "
            "(policy.load_in_4bit=true): name the model that this one was quantized from"
        )


def values_of(model: str) -> ModelConfigValues:
    """Return the config.json of a bundled model, a directory (of adapters: their base's), a model in the hub's cache,
    or a registered one. Raise InputError if there is none."""
    folder = BUNDLED.get(model) or Path(model).expanduser()
    if adapters_alone(folder):
        return values_of(base_of(folder))
    path = folder / "config.json" if folder.is_dir() else _cached(model)
    registered = lookup(model)
    if path is None or not path.is_file():
        if registered is None:
            raise InputError(
                f"no config.json of {model}: not a directory with one, not in the hub's cache, not "
                f"known by name{_like(model)}; known are {KNOWN_MODELS}; of any other model name a directory that "
                "holds its config.json (no weights are needed)"
            )
        return registered
    try:
        loaded = json.loads(path.read_text())
    except (ValueError, OSError) as error:
        raise InputError(f"{path}: not a JSON object ({error})") from None
    if not isinstance(loaded, dict):
        raise InputError(f"{path}: not a JSON object")
    # Shipped measurements of a registered model are keyed by the registry's values, so use those if they agree.
    if registered is not None and all(loaded.get(key) == value for key, value in registered.items()):
        return registered
    return loaded


def _like(model: str) -> str:
    """Return a hint with the nearest hub name, or ""."""
    hint = nearest(model, [*BUNDLED, *MODEL_CONFIGS])
    return f"; {hint}" if hint.startswith("did you mean") and "/" in model else ""


def _cached(model: str) -> Path | None:
    folder = hub_repository(model) / "snapshots"
    snapshots = sorted(folder.glob("*/config.json")) if "/" in model else []
    return snapshots[-1] if snapshots else None
