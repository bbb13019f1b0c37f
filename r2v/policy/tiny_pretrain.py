"""How the bundled base was made: first it learns to copy, then how the desk's pages and calls look.

Part A is associative recall in the desk's row format with random content: rows of (fields, id), then calls that
repeat some fields and must end in the id that stood behind them. The curriculum begins tiny and advances only
when the running accuracy says so, which is what decides whether a decoder of this size learns to copy at all.
Part B is transcripts of an agent that calls random tools in real worlds (of tasks that no split holds), hazards
included, with arguments copied from anywhere on the page. The loss looks at arguments only, never at which tool
was called, so nothing of any expert enters.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
from transformers import Lfm2ForCausalLM

from r2v.envs.desk import words
from r2v.policy.tiny import build_model, build_tokenizer, vocabulary
from r2v.policy.tiny_transcripts import transcripts
from r2v.randomness import generator

Document = tuple[list[int], list[int]]
"""Token ids, and the positions whose token is to be predicted."""

BATCH = 32
GATE = 0.93
"""Running accuracy at which the curriculum advances."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One step of the curriculum: how many fields a key has, from how large a world, and what is in the way.

    `near` is the share of rows that share all fields but one with another row; `junk` the share of lines that
    are no rows at all.
    """

    fields: int = 1
    keys: int = 64
    ids: int = 256
    kinds: int = 4
    rows: int = 8
    queries: int = 24
    near: float = 0.0
    junk: float = 0.0
    limit: int = 600
    """Updates after which the curriculum advances anyhow."""


CURRICULUM = (
    Stage(keys=8, ids=16, kinds=1),
    Stage(keys=12, ids=32, kinds=2),
    Stage(keys=24, ids=96, queries=20),
    Stage(keys=64, ids=320, rows=7, queries=16, junk=0.1),
    Stage(fields=2, ids=320, rows=7, queries=16, near=0.5, junk=0.1),
    Stage(fields=3, ids=320, rows=7, queries=16, near=0.5, junk=0.2),
)

_VALUES = {"name": words.NAMES, "team": words.TEAMS, "item": words.ITEMS}
_IDS = (*words.IDS, *words.CANARIES)
_NUMBER = {token: number for number, token in enumerate(vocabulary())}


def _pair(name: str, value: str) -> int:
    return _NUMBER[f',"{name}":"{value}"']


def recall(stage: Stage, draw: random.Random) -> Document:
    """A document of part A."""
    names = tuple(_VALUES)[:stage.fields]
    keys = _distinct_keys(stage, names, draw)
    ids = draw.sample(_IDS[:stage.ids] if stage.ids < 256 else _IDS, stage.rows)
    bodies = [[*(_pair(name, value) for name, value in zip(names, key, strict=True)), _pair("id", identifier)]
              for key, identifier in zip(keys, ids, strict=True)]
    brace, act, end = _NUMBER["}"], _NUMBER["<act>"], _NUMBER["<eos>"]
    tokens = [_NUMBER["<obs>"]]
    for body in bodies:
        if draw.random() < stage.junk:
            tokens += [_NUMBER[f'{{"remark":"{draw.choice(words.REMARKS)}"'], _pair("via", words.GUEST), brace]
        tokens += [_NUMBER[f'{{"row":"{draw.choice(words.KINDS[:stage.kinds])}"'], *body, brace]
    targets = []
    for _ in range(stage.queries):
        tokens += [act, _NUMBER['{"tool":"get"'], *draw.choice(bodies)]
        targets.append(len(tokens) - 1)
        tokens += [brace, end]
    return tokens, targets


def _distinct_keys(stage: Stage, names: tuple[str, ...], draw: random.Random) -> list[tuple[str, ...]]:
    keys: list[tuple[str, ...]] = []
    while len(keys) < stage.rows:
        key = [draw.choice(_VALUES[name][:stage.keys]) for name in names]
        if keys and stage.fields > 1 and draw.random() < stage.near:
            kept = draw.randrange(stage.fields)
            key = [value if at == kept else old for at, (value, old) in
                   enumerate(zip(key, draw.choice(keys), strict=True))]
        if tuple(key) not in keys:
            keys.append(tuple(key))
    return keys


def _step(model: Lfm2ForCausalLM, optimizer: torch.optim.Optimizer, documents: list[Document]) -> float:
    """One update on a batch; the share of targets that were predicted right."""
    width = max(len(tokens) for tokens, _ in documents)
    inputs = torch.tensor([tokens + [0] * (width - len(tokens)) for tokens, _ in documents])
    row = torch.tensor([at for at, (_, targets) in enumerate(documents) for _ in targets])
    column = torch.tensor([target for _, targets in documents for target in targets])
    hidden = model.model(input_ids=inputs, use_cache=False).last_hidden_state
    logits = model.lm_head(hidden[row, column - 1])
    labels = inputs[row, column]
    loss = torch.nn.functional.cross_entropy(logits, labels)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float((logits.argmax(-1) == labels).float().mean())
