"""Pretraining of the bundled base: first it learns to copy, then the format of the desk's pages and calls.

    python -m benchmarks.recipes.tiny_pretrain --output DIR

Part A is associative recall in the desk's row format with random content: rows of (fields, id), then calls that repeat
some fields and must end in the id that followed them. The curriculum begins tiny and advances only when the running
accuracy passes its gate; without that, a decoder of this size does not learn to copy at all. Part B is transcripts of
an agent that calls random tools in real worlds, look-alikes included, on tasks of no split, with arguments copied from
the pages. The loss covers arguments only, never the tool's name, so no expert's choice enters.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import Lfm2ForCausalLM

from benchmarks.recipes.tiny import build_model, build_tokenizer
from benchmarks.recipes.tiny_documents import CurriculumStage, Document, dossier, recall, relation
from benchmarks.recipes.tiny_transcripts import fresh_tasks, transcript_document
from r2v.log import logger, setup
from r2v.randomness import generator

DOCUMENTS_PER_BATCH = 32
WARM_UP_UPDATES = 50
RATE_A, RATE_B = 5e-3, 3e-3
UPDATES_B, TRANSCRIPTS = 600, 10
"""Updates of part B, and the number of transcripts in each of its batches."""
GATE = 0.93
"""Running accuracy at which the curriculum advances."""
MAX_STAGE_UPDATES = 800
"""Updates after which a stage of it ends anyhow."""

CURRICULUM = (
    CurriculumStage(keys=8, ids=16, kinds=1, rows=8, queries=24),
    CurriculumStage(keys=12, ids=32, kinds=2, rows=8, queries=24),
    CurriculumStage(keys=24, ids=96, rows=8, queries=20),
    CurriculumStage(junk=0.1),
    CurriculumStage(fields=2, near=0.5, junk=0.1),
    CurriculumStage(fields=3, near=0.5, junk=0.2),
)
COPY_TASKS: tuple[tuple[dict[str, Any], Callable[[random.Random], Document]], ...] = (
    *((asdict(stage), partial(recall, stage)) for stage in CURRICULUM),
    ({"lesson": "relation"}, relation),
    ({"lesson": "dossier"}, dossier),
)
"""Lessons of part A, in order: the record of a task, and the writer of its documents."""


def train_step(model: Lfm2ForCausalLM, optimizer: torch.optim.Optimizer, documents: list[Document]) -> float:
    """Make one update on a batch; return the share of targets that were predicted right."""
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


def _optimizer(model: Lfm2ForCausalLM) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=RATE_A, betas=(0.9, 0.98), weight_decay=0.01)


def _set_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def _learn_to_copy(model: Lfm2ForCausalLM, optimizer: torch.optim.Optimizer, number: int, seed: int) -> dict[str, Any]:
    """Train one lesson of part A until its gate opens; return its record."""
    name, write = COPY_TASKS[number]
    running, update = 0.0, 0
    while running < GATE and update < MAX_STAGE_UPDATES:
        draw = generator("pretrain", "copy", seed, number, update)
        _set_rate(optimizer, RATE_A * (min(1.0, (update + 1) / WARM_UP_UPDATES) if number == 0 else 1.0))
        right = train_step(model, optimizer, [write(draw) for _ in range(DOCUMENTS_PER_BATCH)])
        running += 0.1 * (right - running)
        update += 1
        if update % 50 == 0:
            logger.info("lesson %d: update %d, %.3f right, %.0f CPU-s", number, update, running, time.process_time())
    return name | {"updates": update, "accuracy": round(running, 4)}


def _learn_the_desk(model: Lfm2ForCausalLM, optimizer: torch.optim.Optimizer, seed: int) -> None:
    """Train part B: transcripts of random calls mixed with dossiers, the rate falling to zero."""
    tasks = fresh_tasks("pretrain", UPDATES_B * TRANSCRIPTS)
    for update in range(UPDATES_B):
        draw = generator("pretrain", "mixed", seed, update)
        _set_rate(optimizer, RATE_B * min(1.0, 2 * (1 - update / UPDATES_B)))
        chosen = tasks[update * TRANSCRIPTS : (update + 1) * TRANSCRIPTS]
        right = train_step(
            model,
            optimizer,
            [
                *(transcript_document(task, seed) for task in chosen),
                *(dossier(draw) for _ in range(DOCUMENTS_PER_BATCH - TRANSCRIPTS)),
            ],
        )
        if update % 50 == 0:
            logger.info("desk: update %d of %d, %.3f right, %.0f CPU-s", update, UPDATES_B, right, time.process_time())


@torch.no_grad()
def accuracy(model: Lfm2ForCausalLM, documents: list[Document]) -> float:
    """Return the share of targets predicted right."""
    right = total = 0
    for tokens, targets in documents:
        logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
        guess = logits[[target - 1 for target in targets]].argmax(-1).tolist()
        right += sum(tokens[target] == token for target, token in zip(targets, guess, strict=True))
        total += len(targets)
    return right / total


def _figures(model: Lfm2ForCausalLM) -> dict[str, Any]:
    """Return the base's size and its copying accuracy on unseen documents. `argument_accuracy` counts every
    argument of random calls; most of those are free choices of the agent, so it stays well below 1."""
    draws = [generator("pretrain", "check", number) for number in range(100)]
    unseen = {
        "recall_accuracy": [recall(CURRICULUM[-1], draw) for draw in draws],
        "dossier_accuracy": [dossier(draw) for draw in draws],
        "argument_accuracy": [transcript_document(task, 0) for task in fresh_tasks("pretrain-check", 100)],
    }
    return {"parameters": model.num_parameters()} | {
        name: round(accuracy(model, documents), 4) for name, documents in unseen.items()
    }


def pretrain(output: Path, seed: int = 0) -> None:
    """Make a base and write it with its tokenizer and `recipe.json` into `output` (about 12 CPU-minutes)."""
    torch.set_num_threads(1)
    started = time.process_time()
    model, tokenizer = build_model(seed), build_tokenizer()
    copying = _optimizer(model)
    lessons = [_learn_to_copy(model, copying, number, seed) for number in range(len(COPY_TASKS))]
    _learn_the_desk(model, _optimizer(model), seed)
    recipe = {
        "seed": seed,
        "cpu_seconds": round(time.process_time() - started),
        "lessons": lessons,
        "desk_updates": UPDATES_B,
    } | _figures(model)
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    (output / "recipe.json").write_text(json.dumps(recipe, indent=1) + "\n")


def main() -> None:
    """`python -m benchmarks.recipes.tiny_pretrain --output DIR`."""
    parser = argparse.ArgumentParser(description="Pretrain the bundled student's base again, by its recipe.")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder for the weights; required")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the recipe's draws (default: 0)")
    arguments = parser.parse_args()
    if arguments.output.exists():
        parser.error(f"--output {arguments.output}: is there already; remove it, or name a new folder")
    setup()
    pretrain(arguments.output, arguments.seed)


if __name__ == "__main__":
    main()
