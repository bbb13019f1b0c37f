"""Measurement: the memory and operations of one micro-batch of one piece of training or acting code. No torch.

    peak = measurement.peak(("fresh", "step"), rows=8, tokens=1024)
    peak.size, peak.at                      # bytes beyond weights and optimizer, "backward, layer 28 of 28"

`r2v.memory.measured` runs the code on tensors without data at a few shapes. The live bytes after each operation are
polynomials of rows and tokens; those that are the peak at some shape are kept as moments.
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
_VERSION = 1
"""Raised where measurements of earlier versions no longer hold."""
ENCODERS = ("bert", "roberta", "xlm-roberta", "distilbert", "electra", "deberta-v2", "camembert")
"""Types of models that are read as encoders, whatever else transformers has of them."""
_LIBRARIES = ("torch", "transformers", "peft", "trl")


@cache
def _versions() -> list[str]:
    return [f"{name} {metadata.version(name)}" for name in _LIBRARIES]


@dataclass(frozen=True, kw_only=True)
class MeasuredCase:
    """A piece of code and the model that it runs, by all that decides the memory of a micro-batch."""

    code: str
    """Dotted path, module:function, of the function that runs a micro-batch (`r2v.memory.measured.rehearsal`)."""
    action: Action
    role: str = "language"
    """What the model is: language, critic or value."""
    model: ModelConfigValues
    """config.json of the model."""
    rank: int = 0
    """Rank of the adapters; 0: none."""
    frozen: bool = False
    """True if weights outside the adapters have no gradients. A model without adapters is then not trained at all."""
    width: int = 4
    """Bytes per weight of the model: 2 (bfloat16) or 4 (float32)."""
    adapter_width: int = 4
    autocast: bool = False
    """True if matrices multiply in bfloat16 whatever their type."""
    four_bit: bool = False
    """True if the layers' matrices are packed in nf4, and all else is float32."""
    fused: bool = False
    """True if AdamW is torch's fused one."""
    checkpoint: bool = False
    """Gradient checkpointing."""
    chunk: int = 0
    """Tokens whose logits exist at a time; 0: the code makes none."""
    single_chunk: bool = False
    """True if all predicted tokens fit one chunk."""
    completions: bool = False
    """True if fewer tokens are predicted than there are."""
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
    """The most bytes at a time, weights and optimizer left out, and what runs then."""

    size: float
    at: str


@dataclass(frozen=True, kw_only=True)
class Moment:
    """An operation after which more bytes are live than after any other, at some shape."""

    stretch: str
    """fresh or accumulated (a micro-batch by whether it is the first of its update), step, read, prompt, choose,
    token, or held (between passes)."""
    name: str
    terms: tuple[float, ...]
    """Coefficients of TERMS."""


@dataclass(frozen=True, kw_only=True)
class MeasuredMemory:
    """The moments of a case, and what it computes."""

    moments: tuple[Moment, ...]
    flops: tuple[float, ...]
    """Floating-point operations of one micro-batch, as coefficients of TERMS."""
    trained: int
    """Trained parameters."""
    trained_bytes: int
    """Bytes of their gradients."""
    weights: int
    """Bytes of all weights, as they were measured."""

    def peak(self, stretches: Sequence[str], *, rows: float, tokens: float, predicted: float | None = None) -> Peak:
        """The largest moment of some stretches. `predicted`: tokens of all rows whose log-probabilities are computed
        (None: all)."""
        values = terms(rows, tokens, rows * tokens if predicted is None else predicted)
        sizes = [
            (sum(c * value for c, value in zip(moment.terms, values, strict=True)), moment.name)
            for moment in self.moments
            if moment.stretch in stretches
        ]
        size, at = max(sizes, default=(0.0, ""))
        return Peak(size=size, at=at)

    def operations(self, *, rows: float, tokens: float, predicted: float | None = None) -> float:
        """Floating-point operations of a micro-batch."""
        values = terms(rows, tokens, rows * tokens if predicted is None else predicted)
        return sum(c * value for c, value in zip(self.flops, values, strict=True))


def terms(rows: float, tokens: float, predicted: float) -> tuple[float, ...]:
    """The values of TERMS."""
    return (1.0, tokens, tokens * tokens, rows, rows * tokens, rows * tokens * tokens, predicted)


@dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """Counts of a model's parameters, from the model itself built without data."""

    parameters: int
    embedding: int
    """Of the token embedding."""
    layer: int
    """Of the largest layer."""
    packed: int
    """In the layers' linear modules, which 4-bit loading packs; biases are not."""
    per_token: int
    """That one token is multiplied with: of a mixture's experts those that it is sent to."""
    adapters: int
    """Of adapters of rank 1 on every linear module and expert of the layers."""
    head: int
    """Of the output embedding where it is not tied to the token embedding, else 0."""


def as_values(measurement: MeasuredMemory) -> dict[str, Any]:
    """As JSON values, coefficients rounded to the byte or to nine digits."""
    moments = [[moment.stretch, moment.name, *map(_short, moment.terms)] for moment in measurement.moments]
    return {**asdict(measurement), "moments": moments, "flops": [_short(c) for c in measurement.flops]}


def from_values(values: Mapping[str, Any]) -> MeasuredMemory:
    """The measurement that `as_values` wrote. Raises KeyError, TypeError or ValueError for other values."""
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
