"""Served verifier: a serving engine computes hidden states of contexts with actions, the head scores them here.

    scorer = waves.batched(ServedVerifier(servers, adapter, head=read_head(folder), encode=encode))

A pooling server returns the hidden state of the last token, the input of a verifier's head (`r2v.verifier.model`). The
verifier and each of its folds are named adapters on one base, and their heads, one vector each, stay in this process.
Contexts are encoded in a thread, off the event loop; a dying server loses no question (`r2v.llm.engines.client`).
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from r2v.errors import EnvironmentFault, InputError
from r2v.llm.engines.client import Adapter, EngineClient
from r2v.llm.engines.servers import EngineServer
from r2v.llm.types import ScoreReply, ScoreRequest
from r2v.storage.weights import readable_model
from r2v.wire.message import Message

EMBEDDINGS = "/v1/embeddings"
WEIGHTS, SETTINGS = "verifier.safetensors", "verifier.json"


@dataclass(frozen=True, kw_only=True)
class ScoreHead:
    """Linear head and temperature of a verifier."""

    weight: NDArray[np.float64]
    """(hidden size,)."""
    bias: float
    temperature: float

    def score(self, state: NDArray[np.float64]) -> float:
        """Return the probability, rounded to 6 decimals, that the action with this hidden state is good."""
        logit = (float(self.weight @ state) + self.bias) / self.temperature
        return round(1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit)), 6)


def read_head(folder: Path) -> ScoreHead:
    """Return the head of a verifier of adapters. Raise InputError if the folder has none."""
    from safetensors.numpy import load_file

    with readable_model(f"{folder}: not a verifier of adapters", "train it again with policy.lora_r above 0"):
        tensors = load_file(folder / WEIGHTS)
        temperature = float(json.loads((folder / SETTINGS).read_text())["temperature"])
        weight, bias = tensors["head.weight"].astype(np.float64)[0], float(tensors["head.bias"][0])
    if not (np.isfinite(weight).all() and math.isfinite(bias) and math.isfinite(temperature) and temperature > 0):
        raise InputError(f"{folder}: not a verifier: its head or its temperature ({temperature}) is no number above 0")
    return ScoreHead(weight=weight, bias=bias, temperature=temperature)


class ServedVerifier:
    """`Remote[ScoreRequest, ScoreReply]` (see `r2v.llm.types`) of a verifier on servers."""

    max_batch = 100_000
    max_age = 0.0

    def __init__(
        self,
        servers: Sequence[EngineServer],
        adapter: Adapter,
        *,
        head: ScoreHead,
        encode: Callable[[Sequence[Message], str], list[int]],
    ) -> None:
        self.client = EngineClient(servers, adapter)
        self.head, self._encode = head, encode

    async def __aenter__(self) -> ServedVerifier:
        await self.client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.client.__aexit__(kind, error, trace)

    def send(self, requests: Sequence[ScoreRequest]) -> Sequence[asyncio.Future[ScoreReply]]:
        """Return one future score per request, in order."""
        return self.client.start(self._score(request) for request in requests)

    async def _score(self, request: ScoreRequest) -> ScoreReply:
        ids = await self.client.encoded(self._encode, request.messages, request.action)
        server = self.client.server_index(*(message.text for message in request.messages[:2]))
        body = {"model": self.client.model, "input": ids, "encoding_format": "base64"}
        answer = await self.client.ask(server, EMBEDDINGS, body)
        try:
            score = self.head.score(read_state(answer, len(self.head.weight)))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EnvironmentFault(
                f"policy.engine={self.client.servers[server].url}: not a hidden state of vLLM ({error!r})"
            ) from None
        return ScoreReply(score=score, tokens_in=len(ids))


def read_state(answer: Mapping[str, Any], size: int) -> NDArray[np.float64]:
    """Return the hidden state (size,) of an answer. Raise ValueError, KeyError, IndexError or TypeError if it is
    missing, not finite, or of another size."""
    raw = base64.b64decode(answer["data"][0]["embedding"], validate=True)
    state = np.frombuffer(raw, dtype="<f4").astype(np.float64)
    if state.shape != (size,) or not np.isfinite(state).all():
        raise ValueError(f"{state.size} values for {size}, or not finite")
    return state
