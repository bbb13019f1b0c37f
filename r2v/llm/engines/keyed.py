"""Keyed sampling inside vLLM: a logits processor that draws as `r2v.llm.sampling` does and reports exact figures.

It runs in the engine's own Python, which has no r2v: what it shares with this package (`r2v.llm.sampling`,
`r2v.randomness`) it loads by path. A request brings its draw in `vllm_xargs`:

    {"r2v_key": "[1, \\"task-7\\", 3, \\"slm\\", 0]", "r2v_temperature": 0.7, "r2v_top_p": 0.9}

and is greedy for vLLM, with `logprobs=2` and the engine started under `--logprobs-mode=processed_logits`. The logits of
its row are replaced by two finite ones: the chosen token's is 1 + entropy, another token's is the chosen one's
log-probability (nats, of the untempered distribution). The first is always the greater, so greedy takes it, and both
come back with the token: exact figures of the whole vocabulary in two numbers. `read_report` reads them.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

_ENGINE = "vllm.v1.sample.logits_processor"
# Outside the engine, where there is no vllm, the arithmetic alone is wanted.
_Base: Any = importlib.import_module(_ENGINE).LogitsProcessor if importlib.util.find_spec("vllm") else object

XARGS = ("r2v_key", "r2v_temperature", "r2v_top_p")
"""What a request brings: the key of its draw as JSON, the temperature, the mass of the nucleus."""
NUM_LOGPROBS = 2
"""Alternatives to ask for with each token: the two finite logits."""


def _sibling(*parts: str) -> ModuleType:
    """A module of this package by its path, for a Python in which the package is not installed."""
    path = Path(__file__).resolve().parents[2].joinpath(*parts)
    spec = importlib.util.spec_from_file_location(f"r2v_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_sampling = _sibling("llm", "sampling.py")
_randomness = _sibling("randomness.py")


class KeyedDraw(NamedTuple):
    """How a row draws. `drawn` is the engine's own list of the row's tokens so far, which grows."""

    key: tuple[str | int, ...]
    temperature: float
    top_p: float
    drawn: list[int]


def keyed_draw(extra: Mapping[str, Any] | None, drawn: list[int]) -> KeyedDraw | None:
    """The draw that a request brings; None for one that brings none. Raises ValueError where it is malformed."""
    if not extra or XARGS[0] not in extra:
        return None
    key = json.loads(extra["r2v_key"])
    temperature, top_p = float(extra["r2v_temperature"]), float(extra["r2v_top_p"])
    if not isinstance(key, list) or not all(isinstance(part, (str, int)) for part in key):
        raise ValueError("r2v_key: a JSON list of texts and integers")
    if not (temperature >= 0 and math.isfinite(temperature) and 0 < top_p <= 1):
        raise ValueError("r2v_temperature: at least 0; r2v_top_p: above 0, at most 1")
    return KeyedDraw(tuple(key), temperature, top_p, drawn)


def report(logits: Tensor, draws: Mapping[int, KeyedDraw]) -> Tensor:
    """Logits (B, V) with the rows of `draws` replaced by what each has chosen, as told above; the others as they
    are."""
    rows = sorted(draws)
    if not rows:
        return logits
    these = [draws[row] for row in rows]
    uniforms = [_randomness.uniform(*d.key, len(d.drawn)) if d.temperature > 0 else 0.0 for d in these]
    index = torch.tensor(rows, device=logits.device)
    chosen = _sampling.choose(logits[index], [d.temperature for d in these], [d.top_p for d in these], uniforms)
    told = torch.full((len(rows), logits.shape[-1]), -math.inf, dtype=logits.dtype, device=logits.device)
    place = torch.arange(len(rows), device=logits.device)
    told[place, (chosen.tokens + 1) % logits.shape[-1]] = chosen.logprobs.to(logits.dtype)
    told[place, chosen.tokens] = (1 + chosen.entropies).to(logits.dtype)
    logits[index] = told
    return logits


def read_report(token: int, alternatives: Mapping[int, float]) -> tuple[float, float] | None:
    """(log-probability, entropy) of a token from the alternatives that came back with it; None where they are not what
    this processor tells."""
    others = [value for other, value in alternatives.items() if other != token]
    if len(others) != 1 or token not in alternatives:
        return None
    entropy, logprob = alternatives[token] - 1, others[0]
    return (logprob, max(0.0, entropy)) if logprob <= 0 and entropy > -1e-3 else None


class Keyed(_Base):  # type: ignore[misc,unused-ignore]
    """The processor as vLLM loads it: `--logits-processors r2v_keyed:Keyed`."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self._draws: dict[int, KeyedDraw] = {}

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuses a malformed draw: the server answers 400."""
        keyed_draw(sampling_params.extra_args, [])

    def is_argmax_invariant(self) -> bool:
        """It decides the argmax."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Keep up with who sits in which row: removed, added, moved, in this order."""
        if batch_update is None:
            return
        for row in batch_update.removed:
            self._draws.pop(row, None)
        for row, params, _, drawn in batch_update.added:
            self._put(row, keyed_draw(params.extra_args, drawn))
        for one, two, how in batch_update.moved:
            mine, theirs = self._draws.pop(one, None), self._draws.pop(two, None)
            self._put(two, mine)
            if how.name == "SWAP":
                self._put(one, theirs)

    def _put(self, row: int, draw: KeyedDraw | None) -> None:
        if draw is None:
            self._draws.pop(row, None)
        else:
            self._draws[row] = draw

    def apply(self, logits: Tensor) -> Tensor:
        """logits: (B, V)."""
        return report(logits, self._draws)
