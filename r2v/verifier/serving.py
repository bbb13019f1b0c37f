"""Served verifier: a serving engine computes hidden states of contexts with actions, the head scores them here.

    scorer = waves.batched(served_verifier(servers, adapter, head=read_head(folder), encode=encode))

A pooling server returns the hidden state of the last token, the input of a verifier's head (`r2v.verifier.model`). The
verifier and each of its folds are named adapters on one base, and their heads, one vector each, stay in this process.
Contexts are encoded in a thread, off the event loop; a dying server loses no question (`r2v.llm.engines.client`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from r2v.errors import EnvironmentFault, InputError
from r2v.llm.engines.client import Adapter, EngineClient, ServedModel
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


def served_verifier(
    servers: Sequence[EngineServer],
    adapter: Adapter,
    *,
    head: ScoreHead,
    encode: Callable[[Sequence[Message], str], list[int]],
) -> ServedModel[ScoreRequest, ScoreReply]:
    """Return a verifier's adapter on servers of hidden states, and its head."""
    client = EngineClient(servers, adapter)

    async def score(request: ScoreRequest) -> ScoreReply:
        ids = await client.encoded(encode, request.messages, request.action)
        index = client.server_index(*(message.text for message in request.messages[:2]))
        state = np.array(await client.ask(index, EMBEDDINGS, {"model": client.model, "input": ids}))
        if state.shape != head.weight.shape or not np.isfinite(state).all():
            fault = f"{state.size} values for {len(head.weight)}, or not finite"
            raise EnvironmentFault(f"policy.engine=vllm: not a hidden state of vLLM ({fault})")
        return ScoreReply(score=head.score(state), tokens_in=len(ids))

    return ServedModel(client, score)
