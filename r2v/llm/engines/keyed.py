"""Keyed sampling inside vLLM: a logits processor that draws as `r2v.llm.sampling` does and reports exact figures.

It runs in the engine's own Python, where r2v is not installed, so it loads `r2v.llm.sampling` and `r2v.randomness` by
path. A request carries its draw in `vllm_xargs`:

    {"r2v_key": "[1, \\"task-7\\", 3, \\"slm\\", 0]", "r2v_temperature": 0.7, "r2v_top_p": 0.9}

and asks vLLM for greedy decoding with `logprobs=2`; the engine runs with `--logprobs-mode=processed_logits`. The
processor replaces the row's logits by two finite ones: the chosen token gets 1 + entropy, one other token gets the
chosen token's log-probability (both in nats, of the untempered distribution). The first is always greater, so greedy
decoding picks it, and vLLM returns both with the token. `read_report` decodes them.
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
# Outside the engine vllm is missing, and only the arithmetic is used.
_Base: Any = importlib.import_module(_ENGINE).LogitsProcessor if importlib.util.find_spec("vllm") else object

XARGS = ("r2v_key", "r2v_temperature", "r2v_top_p")
"""Sampling parameters of a request: the draw's key as JSON, the temperature, the nucleus mass (top-p)."""
NUM_LOGPROBS = 2
"""Log-probabilities to request per token: the two finite logits."""


def _sibling(*parts: str) -> ModuleType:
    """Load a module of this package by path, since the package is not installed in the engine's Python."""
    path = Path(__file__).resolve().parents[2].joinpath(*parts)
    spec = importlib.util.spec_from_file_location(f"r2v_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_sampling = _sibling("llm", "sampling.py")
_randomness = _sibling("randomness.py")


class KeyedDraw(NamedTuple):
    """Sampling parameters of a row. `drawn` is the engine's own list of the row's tokens, which it appends to."""

    key: tuple[str | int, ...]
    temperature: float
    top_p: float
    drawn: list[int]


def keyed_draw(extra: Mapping[str, Any] | None, drawn: list[int]) -> KeyedDraw | None:
    """Return the draw of a request, None if it carries none. Raises ValueError if it is malformed."""
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
    """Draw a token for each row of `draws` and encode it in the row's logits as the module describes. logits: (B, V),
    changed in place and returned; other rows stay."""
    rows = sorted(draws)
    if not rows:
        return logits
    keyed = [draws[row] for row in rows]
    uniforms = [_randomness.uniform(*d.key, len(d.drawn)) if d.temperature > 0 else 0.0 for d in keyed]
    index = torch.tensor(rows, device=logits.device)
    chosen = _sampling.choose(logits[index], [d.temperature for d in keyed], [d.top_p for d in keyed], uniforms)
    encoded = torch.full((len(rows), logits.shape[-1]), -math.inf, dtype=logits.dtype, device=logits.device)
    positions = torch.arange(len(rows), device=logits.device)
    encoded[positions, (chosen.tokens + 1) % logits.shape[-1]] = chosen.logprobs.to(logits.dtype)
    encoded[positions, chosen.tokens] = (1 + chosen.entropies).to(logits.dtype)
    logits[index] = encoded
    return logits


def read_report(token: int, alternatives: Mapping[int, float]) -> tuple[float, float] | None:
    """Return (log-probability, entropy) of a token, in nats, from the log-probabilities returned with it; None if this
    processor did not write them."""
    others = [value for other, value in alternatives.items() if other != token]
    if len(others) != 1 or token not in alternatives:
        return None
    entropy, logprob = alternatives[token] - 1, others[0]
    return (logprob, max(0.0, entropy)) if logprob <= 0 and entropy > -1e-3 else None


class Keyed(_Base):  # type: ignore[misc,unused-ignore]
    """Logits processor that vLLM loads by `--logits-processors r2v_keyed:Keyed`."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self._draws: dict[int, KeyedDraw] = {}

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raise ValueError for a malformed draw; the server then answers 400."""
        keyed_draw(sampling_params.extra_args, [])

    def is_argmax_invariant(self) -> bool:
        """Return False: this processor decides the argmax."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Update the draws by row as vLLM removes, adds and moves requests, in this order."""
        if batch_update is None:
            return
        for row in batch_update.removed:
            self._draws.pop(row, None)
        for row, params, _, drawn in batch_update.added:
            self._put(row, keyed_draw(params.extra_args, drawn))
        for source, target, direction in batch_update.moved:
            moved, replaced = self._draws.pop(source, None), self._draws.pop(target, None)
            self._put(target, moved)
            if direction.name == "SWAP":
                self._put(source, replaced)

    def _put(self, row: int, draw: KeyedDraw | None) -> None:
        if draw is None:
            self._draws.pop(row, None)
        else:
            self._draws[row] = draw

    def apply(self, logits: Tensor) -> Tensor:
        """Draw the tokens of all keyed rows. logits: (B, V)."""
        return report(logits, self._draws)
