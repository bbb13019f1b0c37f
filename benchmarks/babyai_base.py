"""Pretrain the base of BabyAI's students: 0.2 million parameters that read pages and know none of the bot's choices.

    python -m benchmarks.babyai_base outputs/babyai_base      # then: python -m benchmarks.students --config ...

The architecture is the bundled student's (LFM2), and so is the recipe: recall documents first, which begin tiny and
advance by accuracy alone, then transcripts of an agent that acts at random, with the loss on its next observations. No
choice of the expert enters. Tokens are the pages' phrases ("green key", ": 2 forward"), else bytes, so that any text of
a perturbation can be read. Transcripts come from layouts with numbers above those of any configuration.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.recipes.tiny_pretrain import train_step
from benchmarks.small_base import BATCH, Document, lesson, model_of, optimizer_of, save, set_rate, tokenizer_of
from r2v.envs.babyai import call, laid_out, view
from r2v.randomness import generator

FIRST_LAYOUT = 500_000
"""Behind the layouts of any configuration: transcripts and the tokenizer's texts are made from here on."""
TOOLS = ("left", "right", "forward", "pick", "drop", "toggle", "wait")
COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
KINDS = ("ball", "key", "box")
ASIDES = [f"{n} {way}" for n in range(1, 4) for way in ("left", "right")]
PLACES = [f": {n} forward{aside}" for n in range(1, 7) for aside in ("", *(f", {side}" for side in ASIDES))]
PLACES += [f": {aside}" for aside in ASIDES]
TOKEN = (
    r"""\{"tool":"[a-z]+"\}|(?:red|green|blue|purple|yellow|grey) (?:ball|key|box|door)|wall"""
    r"""|: \d forward(?:, \d (?:left|right))?|: \d (?:left|right)"""
    r"""|you carry nothing;| \d+ left|\n"""
    r"""|(?: (?!(?:red|green|blue|purple|yellow|grey) (?:ball|key|box|door)))?\w+| ?[^\s\w]+|\s+"""
)
VOCABULARY = 640
TRANSCRIPT_UPDATES = 600


def phrases() -> Iterator[str]:
    """Yield every phrase of the pages often enough to become one token."""
    things = [f"{colour} {kind}" for colour, kind in product(COLOURS, (*KINDS, "door"))] + ["wall"]
    for _ in range(60):
        yield from things
        yield from PLACES
        yield from (f" {n} left" for n in range(65))
        yield from map(call, TOOLS)
        yield "you carry nothing;"
        yield from ("go to the ", "go to a ", "pick up the ", "put the ", " next to ", "open the ", "unlock the ")


def recall(size: int, sides: bool, tokenizer: Any, draw: random.Random) -> Document:
    """Return a page of made-up things and places, then the things in another order; their places are the targets."""
    lines = [
        (f"{colour} {kind}", draw.choice(PLACES if sides else PLACES[::7]))
        for colour, kind in draw.sample([*product(COLOURS, KINDS)], size)
    ]
    ids = tokenizer("<obs>you carry nothing;" + "".join(f"\n{name}{place}" for name, place in lines))["input_ids"]
    targets: list[int] = []
    for _ in range(20):
        name, place = draw.choice(lines)
        ids += tokenizer(f"{draw.choice(chr(10) + ' ')}{name}{place}")["input_ids"]
        targets.append(len(ids) - 1)
    return ids, targets


def where(size: int, pages: int, tokenizer: Any, draw: random.Random) -> Document:
    """Return a goal and made-up pages; the target after each is the place of the goal's thing, or that it is absent."""
    things = [f"{colour} {kind}" for colour, kind in draw.sample([*product(COLOURS, KINDS)], size)]
    article = draw.choice(("the", "a"))
    ids = tokenizer(f'<goal>go to {article} {things[0]} (layout "GoToLocal {draw.randrange(10**6)}")')["input_ids"]
    targets: list[int] = []
    for number in range(pages):
        shown = {thing: draw.choice(PLACES) for thing in things if draw.random() < 0.85}
        lines = [f"{thing}{place}" for thing, place in draw.sample([*shown.items()], len(shown))]
        if draw.random() < 0.7:
            lines.insert(0, f"wall: {draw.randint(1, 6)} forward")
        text = "\n".join([f"you carry nothing; {64 - number} left", *lines])
        ids += tokenizer(f"<obs>{text}<act>{shown.get(things[0], 'wall')}<eos>")["input_ids"]
        targets.append(len(ids) - 2)
    return ids, targets


def transcript(level: str, layout: int, tokenizer: Any, draw: random.Random) -> Document:
    """Return a random agent's walk in a layout; targets are its next observations and the place of the goal's thing."""
    grid = laid_out(level, layout)
    ids = tokenizer(f'<goal>{grid.mission} (layout "{level} {layout}")<obs>{view(grid)}')["input_ids"]
    targets: list[int] = []
    for _ in range(draw.randint(3, 9)):
        tool = draw.choice(("left", "right", "forward", "forward", "forward", draw.choice(TOOLS)))
        ids += tokenizer(f"<act>{call(tool)}<eos><obs>")["input_ids"]
        over = grid.step(TOOLS.index(tool))[2]
        if over:
            break
        seen = tokenizer(view(grid))["input_ids"]
        targets += range(len(ids), len(ids) + len(seen))
        ids += seen
    return ids, targets


def pretrain(folder: Path, levels: list[str], seed: int) -> None:
    """Make the base and write it with its tokenizer and `recipe.json`."""
    torch.set_num_threads(1)
    tokenizer = tokenizer_of([*phrases(), *conversations(levels)], TOKEN, VOCABULARY)
    model = model_of(tokenizer, seed)
    optimizer = optimizer_of(model)
    took = [
        lesson(model, optimizer, "babyai", f"recall {size} {sides}", lambda draw: recall(size, sides, tokenizer, draw))  # noqa: B023
        for size, sides in ((4, False), (8, False), (8, True))
    ]
    optimizer = optimizer_of(model)
    right = 0.0
    for number in range(TRANSCRIPT_UPDATES):
        set_rate(optimizer, 3e-3 * min(1.0, (number + 1) / 50, 2 * (1 - number / TRANSCRIPT_UPDATES)))
        draw = generator("babyai-base", "transcripts", number)
        documents = [
            transcript(draw.choice(levels), FIRST_LAYOUT + 1000 + number * BATCH + at, tokenizer, draw)
            for at in range(BATCH - 8)
        ] + [recall(8, True, tokenizer, draw) for _ in range(8)]
        right += 0.05 * (train_step(model, optimizer, documents) - right)
        if number % 25 == 0:
            print(f"transcripts: update {number}, {right:.3f} right, {time.process_time():.0f} CPU-s", flush=True)
    read = optimizer_of(model, 3e-3)
    took += [
        lesson(model, read, "babyai", f"where {size} {pages}", lambda draw: where(size, pages, tokenizer, draw))  # noqa: B023
        for size, pages in ((2, 8), (4, 8), (8, 8))
    ]
    recipe = {"seed": seed, "lessons": took, "transcripts": TRANSCRIPT_UPDATES, "right": round(right, 4)}
    save(folder, model, tokenizer, recipe)


def conversations(levels: list[str]) -> Iterator[str]:
    """Return goals and pages, for the tokenizer's merges."""
    for level in levels:
        for layout in range(FIRST_LAYOUT, FIRST_LAYOUT + 60):
            grid = laid_out(level, layout)
            yield f'{grid.mission} (layout "{level} {layout}")\n{view(grid)}'


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--levels", default="GoToLocal")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    pretrain(arguments.folder, arguments.levels.split(), arguments.seed)


if __name__ == "__main__":
    main()
