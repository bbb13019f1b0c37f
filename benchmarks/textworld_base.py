"""Pretrain the base of TextWorld's students: 0.2 million parameters that read pages and know nothing of the planner.

    python -m benchmarks.textworld_base outputs/textworld_base      # then: python -m benchmarks.students --config ...

First made-up pages, which begin tiny and advance by accuracy alone; the target is the command that names the
objective's thing. Then transcripts of an agent that acts at random in games with numbers above those of any
configuration; targets are its next observations and, for each page, a command that names a thing of the objective, if
the page has one. No choice of the expert enters. Tokens are words.
"""

from __future__ import annotations

import argparse
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.recipes.tiny_pretrain import train_step
from benchmarks.small_base import BATCH, Document, lesson, model_of, optimizer_of, save, set_rate, tokenizer_of
from r2v.envs.textworld import TextWorld, call
from r2v.randomness import generator

FIRST_GAME = 50_000
"""Behind the games of any configuration."""
SIZE = {"quest": 3, "rooms": 3, "objects": 6}
GAMES, STEPS = 300, 8
TOKEN = (
    r"""\{"tool":"do","command":"|"\}|\n(?:objective|you are in|exit|here|you carry|command): """
    r"""|(?:objective|you are in|exit|here|you carry|command): |, with| ?\w+|[^\s\w]+|\s+"""
)
VOCABULARY = 1500
TRANSCRIPT_UPDATES = 500
VERBS = ("take", "open", "close", "drop", "eat", "examine", "unlock", "lock", "put", "insert")


@dataclass(frozen=True, kw_only=True)
class Walk:
    """Pages and commands of a random agent in a game: one page more than commands."""

    goal: str
    pages: tuple[str, ...]
    commands: tuple[str, ...]


def walks(count: int) -> list[Walk]:
    """Return walks of a random agent in games with numbers above those of any configuration."""
    tasks, seen = TextWorld(games=FIRST_GAME + count, **SIZE).tasks()[FIRST_GAME:], []
    for task in tasks:
        world, draw = TextWorld(games=1, **SIZE).make(), generator("textworld-base", "walk", task.task_id)
        page, _ = world.reset(seed=0, task=task)
        pages, commands = [page], list[str]()
        for _ in range(STEPS):
            possible = [command for command in listed(pages[-1]) if not command.startswith(("look", "examine"))]
            commands.append(draw.choice(possible))
            page, _, over, _, _ = world.step(call(commands[-1]))
            pages.append(page)
            if over:
                break
        seen.append(Walk(goal=task.goal, pages=tuple(pages), commands=tuple(commands)))
    return seen


def listed(page: str) -> list[str]:
    """Return the commands of a page."""
    return [line.removeprefix("command: ") for line in page.splitlines() if line.startswith("command: ")]


def things(page: str) -> list[str]:
    """Return the names in a page's commands to look closer."""
    return [command.removeprefix("examine ") for command in listed(page) if command.startswith("examine ")]


def named(page: str) -> str | None:
    """Return a command of the page that names an object of its objective; None if there is none."""
    objective = page.splitlines()[0]
    names = [name for name in things(page) if re.search(rf"\b{re.escape(name)}\b", objective)]
    for name in sorted(names, key=len, reverse=True):
        for command in listed(page):
            if re.search(rf"\b{re.escape(name)}\b", command) and not command.startswith(("examine", "drop")):
                return command
    return None


def matched(size: int, names: Sequence[str], tokenizer: Any, draw: random.Random) -> Document:
    """Return made-up pages: an objective with one name, and commands; the target is the command that holds the name."""
    ids = tokenizer('<goal>Do what every page says after "objective:".')["input_ids"]
    targets: list[int] = []
    for _ in range(6):
        shown = draw.sample([*names], size)
        target = draw.choice(shown)
        commands = {name: f"{draw.choice(VERBS)} {name}" for name in shown}
        text = "\n".join(
            [
                f"objective: Please {draw.choice(VERBS)} the {target}.",
                *(f"command: {command}" for command in commands.values()),
            ]
        )
        ids += tokenizer(f"<obs>{text}<act>")["input_ids"]
        answer = tokenizer(f"{call(commands[target])}<eos>")["input_ids"]
        targets += range(len(ids) + 1, len(ids) + len(answer) - 2)
        ids += answer
    return ids, targets


def transcript(walk: Walk, tokenizer: Any, draw: random.Random) -> Document:
    """Return a random agent's conversation up to the first page with a command that names the objective's thing. That
    command is a target, and so are all earlier observations; of earlier commands, all tokens but the choice are."""
    ids, targets = tokenizer(f"<goal>{walk.goal}")["input_ids"], list[int]()
    for number, (page, command) in enumerate(zip(walk.pages, walk.commands, strict=False)):
        seen = tokenizer(f"<obs>{page}<act>")["input_ids"]
        targets += range(len(ids) + 2, len(ids) + len(seen) - 1) if number else ()
        ids += seen
        target = named(page)
        answer = tokenizer(f"{call(target or command)}<eos>")["input_ids"]
        targets += (
            range(len(ids) + 1, len(ids) + len(answer)) if target else range(len(ids) + 3, len(ids) + len(answer))
        )
        ids += answer
        if target and target != command:
            break  # its result is unknown
    return ids, targets


def pretrain(folder: Path, seed: int) -> None:
    """Make the base and write it with its tokenizer and `recipe.json`."""
    torch.set_num_threads(1)
    seen = walks(GAMES)
    texts = [f"{walk.goal}\n{page}" for walk in seen for page in walk.pages]
    texts += [call(command) for walk in seen for command in walk.commands] * 2
    tokenizer = tokenizer_of(texts, TOKEN, VOCABULARY)
    names = sorted({name for walk in seen for page in walk.pages for name in things(page)})
    print(f"{len(seen)} games, {len(names)} names, {time.process_time():.0f} CPU-s", flush=True)
    model = model_of(tokenizer, seed)
    optimizer = optimizer_of(model)
    took = [
        lesson(model, optimizer, "textworld", f"matched {size}", lambda draw: matched(size, names, tokenizer, draw))  # noqa: B023
        for size in (2, 4, 8)
    ]
    optimizer, right = optimizer_of(model), 0.0
    for number in range(TRANSCRIPT_UPDATES):
        set_rate(optimizer, 3e-3 * min(1.0, (number + 1) / 50, 2 * (1 - number / TRANSCRIPT_UPDATES)))
        draw = generator("textworld-base", "transcripts", number)
        documents = [transcript(draw.choice(seen), tokenizer, draw) for _ in range(BATCH - 8)]
        documents += [matched(8, names, tokenizer, draw) for _ in range(8)]
        right += 0.05 * (train_step(model, optimizer, documents) - right)
        if number % 25 == 0:
            print(f"transcripts: update {number}, {right:.3f} right, {time.process_time():.0f} CPU-s", flush=True)
    recipe = {"seed": seed, "lessons": took, "transcripts": TRANSCRIPT_UPDATES, "right": round(right, 4)}
    save(folder, model, tokenizer, recipe)


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    pretrain(arguments.folder, arguments.seed)


if __name__ == "__main__":
    main()
