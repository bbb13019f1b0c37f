"""Measurement: memory and operations of one micro-batch of training or acting code. No torch.

`r2v.memory.measured` runs the code on fake tensors at a few shapes. The live bytes after each operation are polynomials
of rows and tokens; those that are the peak at some shape are kept as moments.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from typing import Any, Literal

from r2v.memory.model_registry import ModelConfigValues

Action = Literal["train", "read", "generate"]
TERMS = ("1", "tokens", "tokens^2", "rows", "rows * tokens", "rows * tokens^2", "predicted")
"""Terms of the polynomials; `predicted` counts the tokens whose log-probabilities are computed, all rows together."""
_VERSION = 2
"""Version of the measurements; incremented when earlier ones no longer hold."""
ENCODERS = ("bert", "roberta", "xlm-roberta", "distilbert", "electra", "deberta-v2", "camembert")
"""Model types treated as encoders, even if transformers has decoders of them."""
_LIBRARIES = ("torch", "transformers", "peft", "trl")


@cache
def _versions() -> list[str]:
    return [f"{name} {metadata.version(name)}" for name in _LIBRARIES]


@dataclass(frozen=True, kw_only=True)
class MeasuredCase:
    """Measured code and model: all settings that decide the memory of a micro-batch."""

    code: str
    """Dotted path, module:function, of the function that runs a micro-batch (`r2v.memory.measured.rehearsal`)."""
    action: Action
    role: str = "language"
    """Role of the model: language, critic or value."""
    model: ModelConfigValues
    """config.json of the model."""
    rank: int = 0
    """Rank of the adapters; 0: none."""
    frozen: bool = False
    """True if weights outside the adapters have no gradients; without adapters the model is then not trained."""
    width: int = 4
    """Bytes per weight of the model: 2 (bfloat16) or 4 (float32)."""
    adapter_width: int = 4
    autocast: bool = False
    """True if matrices multiply in bfloat16, independent of their type."""
    four_bit: bool = False
    """True if the layers' matrices are packed in nf4 and all others are float32."""
    fused: bool = False
    """True for torch's fused AdamW."""
    checkpoint: bool = False
    """True with gradient checkpointing."""
    chunk: int = 0
    """Tokens whose logits exist at once; 0: the code computes no logits."""
    single_chunk: bool = False
    """True if all predicted tokens fit one chunk."""
    completions: bool = False
    """True if only a part of the tokens is predicted."""
    sampling: str = "greedy"
    samples: int = 1
    """Completions of one prompt."""
    beyond_window: bool = False
    """True if sequences are longer than the window of sliding layers."""

    @property
    def key(self) -> str:
        """Hash of all fields and of the libraries' versions."""
        text = json.dumps([_VERSION, _versions(), asdict(self)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Largest number of live bytes, without weights and optimizer, and the operation at that moment."""

    size: float
    at: str


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Operation after which, at some shape, more bytes are live than after any other."""

    stretch: str
    """fresh (first micro-batch of an update), accumulated (a later one), step, read, prompt, choose, token, or held
    (between passes)."""
    name: str
    terms: tuple[float, ...]
    """Coefficients of TERMS."""


@dataclass(frozen=True, kw_only=True)
class MeasuredMemory:
    """Moments and operations of a measured case."""

    moments: tuple[Moment, ...]
    flops: tuple[float, ...]
    """Floating-point operations of one micro-batch, as coefficients of TERMS."""
    trained: int
    """Number of trained parameters."""
    trained_bytes: int
    """Bytes of their gradients."""
    weights: int
    """Measured bytes of all weights."""

    def peak(self, stretches: Sequence[str], *, rows: float, tokens: float, predicted: float | None = None) -> Peak:
        """Return the largest moment of some stretches. `predicted`: tokens of all rows whose log-probabilities are
        computed (None: all)."""
        values = terms(rows, tokens, rows * tokens if predicted is None else predicted)
        sizes = [
            (sum(c * value for c, value in zip(moment.terms, values, strict=True)), moment.name)
            for moment in self.moments
            if moment.stretch in stretches
        ]
        size, at = max(sizes, default=(0.0, ""))
        return Peak(size=size, at=at)

    def operations(self, *, rows: float, tokens: float, predicted: float | None = None) -> float:
        """Return the floating-point operations of a micro-batch."""
        values = terms(rows, tokens, rows * tokens if predicted is None else predicted)
        return sum(c * value for c, value in zip(self.flops, values, strict=True))


def terms(rows: float, tokens: float, predicted: float) -> tuple[float, ...]:
    """Return the values of TERMS."""
    return (1.0, tokens, tokens * tokens, rows, rows * tokens, rows * tokens * tokens, predicted)


@dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """Counts of a model's parameters, from the model built without data."""

    parameters: int
    embedding: int
    """Parameters of the token embedding."""
    layer: int
    """Parameters of the largest layer."""
    packed: int
    """Parameters of the layers' linear modules packed by 4-bit loading, without biases."""
    per_token: int
    """Parameters multiplied with one token: of a mixture's experts only the selected ones."""
    adapters: int
    """Parameters of adapters of rank 1 on every linear module and expert of the layers."""
    head: int
    """Parameters of the output embedding, 0 if tied to the token embedding."""


def as_values(measurement: MeasuredMemory) -> dict[str, Any]:
    """Return JSON values, coefficients rounded to 10 significant digits and 6 decimals."""
    moments = [[moment.stretch, moment.name, *map(_short, moment.terms)] for moment in measurement.moments]
    return {**asdict(measurement), "moments": moments, "flops": [_short(c) for c in measurement.flops]}


def from_values(values: Mapping[str, Any]) -> MeasuredMemory:
    """Return the measurement written by `as_values`. Raise KeyError, TypeError or ValueError for other values."""
    moments = tuple(
        Moment(stretch=str(stretch), name=str(name), terms=tuple(map(float, some)))
        for stretch, name, *some in values["moments"]
    )
    if any(len(moment.terms) != len(TERMS) for moment in moments):
        raise ValueError(f"moments of {[len(moment.terms) for moment in moments]} terms, expected {len(TERMS)}")
    return MeasuredMemory(
        moments=moments,
        flops=tuple(map(float, values["flops"])),
        trained=int(values["trained"]),
        trained_bytes=int(values["trained_bytes"]),
        weights=int(values["weights"]),
    )


def _short(value: float) -> float | int:
    near = round(float(f"{value:.10g}"), 6)
    return int(near) if near == int(near) else near
