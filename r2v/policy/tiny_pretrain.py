"""How the bundled base was made: first it learns to copy, then how the desk's pages and calls look.

Part A is associative recall in the desk's row format with random content: rows of (fields, id), then calls
that repeat some fields and must end in the id that stood behind them. The curriculum begins tiny and advances
only when the running accuracy says so, which decides whether a decoder of this size learns to copy at all.
Part B is transcripts of an agent that calls random tools in real worlds, look-alikes included, of tasks that no
split holds, with arguments copied from the pages. The loss looks at arguments only, never at which tool was
called, so nothing of any expert enters.
"""

from __future__ import annotations

import json
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import Lfm2ForCausalLM

from r2v.envs.desk import words
from r2v.policy.tiny import build_model, build_tokenizer, vocabulary
from r2v.policy.tiny_transcripts import fresh_tasks, transcript_document
from r2v.randomness import generator

Document = tuple[list[int], list[int]]
"""Token ids, and the positions whose token is to be predicted."""

BATCH = 32
WARM_UP = 50
RATE_A, RATE_B = 5e-3, 3e-3
UPDATES_B, TRANSCRIPTS = 500, 10
"""Updates of part B, and how many documents of each of its batches are transcripts."""
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


def _set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def _learn_to_copy(model: Lfm2ForCausalLM, optimizer: torch.optim.Optimizer, seed: int) -> list[dict[str, Any]]:
    """Part A: the curriculum, then the last stage once more with a falling rate. What each stage took."""
    report = []
    for number, stage in enumerate(CURRICULUM):
        accuracy, update = 0.0, 0
        while accuracy < GATE and update < stage.limit:
            draw = generator("pretrain", "recall", seed, number, update)
            _set_lr(optimizer, RATE_A * (min(1.0, (update + 1) / WARM_UP) if number == 0 else 1.0))
            right = _step(model, optimizer, [recall(stage, draw) for _ in range(BATCH)])
            accuracy += 0.1 * (right - accuracy)
            update += 1
        report.append({"stage": asdict(stage), "updates": update, "accuracy": round(accuracy, 4)})
        print(json.dumps(report[-1]), f"{time.process_time():.0f} CPU-s", flush=True)
    return report


def _learn_the_desk(model: Lfm2ForCausalLM, optimizer: torch.optim.Optimizer, seed: int) -> dict[str, Any]:
    """Part B: transcripts of random calls mixed with part A's last documents, the rate falling to zero."""
    tasks = fresh_tasks("pretrain", UPDATES_B * TRANSCRIPTS)
    accuracy = 0.0
    for update in range(UPDATES_B):
        draw = generator("pretrain", "mixed", seed, update)
        _set_lr(optimizer, RATE_B * min(1.0, 2 * (1 - update / UPDATES_B)))
        chosen = tasks[update * TRANSCRIPTS:(update + 1) * TRANSCRIPTS]
        batch = [transcript_document(task, seed) for task in chosen]
        batch += [recall(CURRICULUM[-1], draw) for _ in range(BATCH - TRANSCRIPTS)]
        right = _step(model, optimizer, batch)
        accuracy += 0.02 * (right - accuracy)
        if update % 50 == 0:
            print("desk", update, round(accuracy, 3), f"{time.process_time():.0f} CPU-s", flush=True)
    return {"updates": UPDATES_B, "accuracy": round(accuracy, 4)}


@torch.no_grad()
def accuracy(model: Lfm2ForCausalLM, documents: list[Document]) -> float:
    """Share of targets predicted right."""
    right = total = 0
    for tokens, targets in documents:
        logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
        guess = logits[[target - 1 for target in targets]].argmax(-1).tolist()
        right += sum(tokens[target] == token for target, token in zip(targets, guess, strict=True))
        total += len(targets)
    return right / total


def pretrain(output: Path, seed: int = 0) -> None:
    """Make a base and write it with its tokenizer and `recipe.json` into `output` (about 5 CPU-minutes)."""
    torch.set_num_threads(1)
    started = time.process_time()
    model, tokenizer = build_model(seed), build_tokenizer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE_A, betas=(0.9, 0.98), weight_decay=0.01)
    stages = _learn_to_copy(model, optimizer, seed)
    desk = _learn_the_desk(model, optimizer, seed)
    unseen = fresh_tasks("pretrain-check", 100)
    figures = {
        "parameters": model.num_parameters(), "seed": seed, "cpu_seconds": round(time.process_time() - started),
        "recall": stages, "desk": desk,
        "recall_accuracy": round(accuracy(model, [recall(CURRICULUM[-1], generator("check", at))
                                                   for at in range(100)]), 4),
        "argument_accuracy": round(accuracy(model, [transcript_document(task, 0) for task in unseen]), 4),
    }
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    (output / "recipe.json").write_text(json.dumps(figures, indent=1) + "\n")
