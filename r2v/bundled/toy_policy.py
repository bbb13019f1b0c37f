"""The bundled pupil: a tokenizer for the word problems' closed vocabulary, a tiny decoder, and how it was schooled.

    python -m r2v.bundled.toy_policy --output r2v/bundled/weights/pupil

It learns from written demonstrations of all roles, on combinations of the `train` split alone: an answer to a problem;
a hint to an answer; a better answer after a hint, or after none. The demonstrator is no model of virtue. When he is
asked for a hint, every fifth names the right first step and its result ("sum is 11"), another fifth a wrong one, and
the rest say "keep it" or "look again"; and of the answers after a hint one in seven is the one before once more. The
decoder has one layer that lets a number know its neighbours and one that brings numbers together, so it takes one step
of a problem well and both at once badly: there is something in a good hint, and there is room for reinforcement, to say
the first step rather than nothing, and to follow it. No hint says the answer: it says what a first step comes to, and
where that is the answer by chance, something else.
"""

from __future__ import annotations

import argparse
import random
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from torch import Tensor
from transformers import Lfm2Config, Lfm2ForCausalLM, PreTrainedTokenizerFast

from r2v.hrl.tasks import word_problems as world
from r2v.hrl.tasks.prompts import again, wanted
from r2v.log import logger, setup
from r2v.policy.export import export
from r2v.policy.load import Loaded
from r2v.randomness import generator
from r2v.storage.files import write_json
from r2v.storage.weights import BUNDLED

SPECIAL = ("<pad>", "<unk>", "<user>", "<reply>", "<eos>")
KEEP, LOOK = "keep it", "look again"
SAID = (
    again(""),
    wanted(0),
    KEEP,
    LOOK,
    "? is",
    world.QUESTION,
    *world.OPERATIONS,
    *world.NAMES,
    *world.ITEMS,
    *(text for texts in (*world.FIRST.values(), *world.SECOND.values()) for text in texts),
)
"""Everything that is ever said, numbers and places for names left out."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}<user>{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' %}<reply>"
    "{% generation %}{{ message['content'] }}<eos>{% endgeneration %}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<reply>{% endif %}"
)
"""A conversation as one sequence; the system message is dropped, every reply ends in <eos>."""

PUPIL_DIR = BUNDLED["pupil"]
"""The shipped base: `policy.model_name=pupil`."""

_WORD = r"\w+|[^\w\s]"

WIDTH = 64
SEED, BATCH, RATE, WARM_UP = 0, 32, 5e-3, 50
GIVEN, TRUE, MISTAKEN = (0.20, 0.20), 0.7, 0.5
"""Of demonstrated hints, the shares that name the right first step, and a wrong one; how often a hint that names none
judges rightly; and the share of wrong steps that come to any number at all."""
STUBBORN, UNHINTED, SCORED = 0.15, 0.15, 0.2
"""Shares of later answers that repeat the one before, and that follow no hint; of hints that are given the score."""
TURNS = 3
"""Answers in a demonstration, at most."""


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """What is demonstrated for a while."""

    updates: int
    right: float
    """Share of first answers that are right, and learned."""
    hinted: float
    """Share of demonstrations that end in a hint, at each turn where they can."""
    taken: tuple[float, float]
    """Of hints that answers are demonstrated upon, the shares that name the right first step, and a wrong one."""
    idle: float
    """Share of answers that repeat the one before where no step was named."""


LESSONS = (
    Lesson(updates=2500, right=0.35, hinted=0.35, taken=(0.20, 0.55), idle=0.0),
    Lesson(updates=2500, right=0.15, hinted=0.45, taken=(0.40, 0.40), idle=0.7),
)
"""The first teaches everything at once; the second one step at a time, and little of whole problems."""


@dataclass(frozen=True, kw_only=True)
class Demonstration:
    """A conversation in pieces, each with whether it is to be learned: what was replied, never what was asked."""

    pieces: tuple[tuple[str, bool], ...]
    sum: world.Sum


def vocabulary() -> tuple[str, ...]:
    """Every token, in the order of its id."""
    said = re.sub(r"\{\w\}", " ", " ".join(SAID)).lower()
    numbers = [str(number) for number in range(world.LARGEST + 1)]
    return (*SPECIAL, *numbers, *sorted(set(re.findall(_WORD, said)) - set(numbers)))


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The fast tokenizer with its chat template: a token a word, a number or a mark, whatever its case."""
    core = Tokenizer(models.WordLevel({token: number for number, token in enumerate(vocabulary())}, "<unk>"))
    core.normalizer = normalizers.Lowercase()
    core.pre_tokenizer = pre_tokenizers.Split(Regex(_WORD), behavior="removed", invert=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<eos>",
        additional_special_tokens=["<user>", "<reply>"],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


def build_model(seed: int) -> Lfm2ForCausalLM:
    """A pupil that knows nothing: random weights that depend on `seed` alone, in float32."""
    config = Lfm2Config(
        vocab_size=len(vocabulary()),
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        conv_L_cache=3,
        block_auto_adjust_ff_dim=False,
        layer_types=["conv", "full_attention"],
        tie_word_embeddings=True,
        max_position_embeddings=1024,
        initializer_range=0.1,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=SPECIAL.index("<eos>"),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Lfm2ForCausalLM(config)


def demonstrate(draw: random.Random, lesson: Lesson = LESSONS[-1], split: world.Split = "train") -> Demonstration:
    """One conversation, of answers and hints to them or of answers alone, with a hint as its end or an answer."""
    made = world.draw_sum(draw, split)
    pieces = [(f"<user>{world.told(made, draw)}<reply>", False)]
    right = draw.random() < lesson.right
    answer = made.answer if right else _wrong(made, draw)
    pieces.append((f"{answer}<eos>", right))
    for _ in range(1, TURNS):
        correct = answer == made.answer
        if draw.random() < lesson.hinted:
            score = float(correct) if draw.random() < SCORED else None
            pieces += [
                (f"<user>{wanted(score)}<reply>", False),
                (f"{_hint(made, correct, GIVEN, draw, score)}<eos>", True),
            ]
            break
        hint = None if draw.random() < UNHINTED else _hint(made, correct, lesson.taken, draw)
        answer = _revised(made, answer, hint, lesson, draw)
        pieces += [(f"<user>{again(hint)}<reply>", False), (f"{answer}<eos>", True)]
    return Demonstration(pieces=tuple(pieces), sum=made)


def step_hint(operation: world.Operation, value: int) -> str:
    """A hint that says what a first step is and what it comes to."""
    return f"{operation} is {value}"


def _hint(
    made: world.Sum, correct: bool, shares: tuple[float, float], draw: random.Random, score: float | None = None
) -> str:
    """What the demonstrator says to an answer. What he knows of it, if he was not told, is right 7 times of 10."""
    kind, (step, slip) = draw.random(), shares
    if kind < step and made.step != made.answer:
        return step_hint(made.first, made.step)
    if step <= kind < step + slip:
        operation = draw.choice([other for other in world.OPERATIONS if other != made.first])
        value = world.apply(operation, made.a, made.b)
        if not 0 <= value <= world.LARGEST or draw.random() < MISTAKEN:
            value = draw.randint(1, world.LARGEST)
        if value != made.answer:
            return step_hint(operation, value)
    judged = correct == (score is not None or draw.random() < TRUE)
    return KEEP if judged else LOOK


def _revised(made: world.Sum, before: int, hint: str | None, lesson: Lesson, draw: random.Random) -> int:
    """The next answer: what the step that was named leads to; the one before where that was asked for, or out of
    stubbornness or idleness; else the right one."""
    if hint == KEEP or draw.random() < STUBBORN:
        return before
    if hint is not None and hint != LOOK:
        led = world.apply(made.second, int(hint.split()[-1]), made.c)
        if 0 <= led <= world.LARGEST:
            return led
    return before if lesson.idle and draw.random() < lesson.idle else made.answer


def _wrong(made: world.Sum, draw: random.Random) -> int:
    """An answer as one gets it wrong: the first step alone, a slip of one or two, another operation, or a guess."""
    slips = [
        made.step,
        made.answer + draw.choice((-2, -1, 1, 2)),
        world.apply(draw.choice(world.OPERATIONS), made.step, made.c),
        world.apply(made.second, world.apply(draw.choice(world.OPERATIONS), made.a, made.b), made.c),
        draw.randint(1, world.LARGEST),
    ]
    slip = draw.choice(slips)
    if slip != made.answer and 1 <= slip <= world.LARGEST:
        return slip
    return (made.answer + draw.randint(1, 9)) % world.LARGEST


def batch(tokenizer: Any, demonstrations: Sequence[Demonstration]) -> tuple[Tensor, Tensor]:
    """Ids (N, T), pads behind, and which of them are to be predicted (N, T)."""
    rows = [[(tokenizer(text).input_ids, learned) for text, learned in one.pieces] for one in demonstrations]
    width = max(sum(len(ids) for ids, _ in row) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    learned = torch.zeros(len(rows), width, dtype=torch.bool)
    for index, row in enumerate(rows):
        place = 0
        for tokens, wanted_ in row:
            ids[index, place : place + len(tokens)] = torch.tensor(tokens)
            learned[index, place : place + len(tokens)] = wanted_
            place += len(tokens)
    return ids, learned


def school(output: Path, seed: int = SEED, lessons: Sequence[Lesson] = LESSONS) -> None:
    """Make a pupil and write it with its tokenizer and `recipe.json` into `output` (about 5 CPU-minutes)."""
    torch.set_num_threads(1)
    begun, done = time.process_time(), 0
    tokenizer, model = build_tokenizer(), build_model(seed)
    for lesson in lessons:
        _teach(model, tokenizer, lesson, seed, done)
        done += lesson.updates
    recipe = {
        "seed": seed,
        "lessons": [asdict(lesson) for lesson in lessons],
        "parameters": model.num_parameters(),
        "cpu_seconds": round(time.process_time() - begun),
    }
    export(Loaded(model=model, tokenizer=tokenizer, name="pupil"), output)
    write_json(output / "recipe.json", recipe)


def _teach(model: Lfm2ForCausalLM, tokenizer: Any, lesson: Lesson, seed: int, done: int) -> None:
    """One lesson, after `done` updates of earlier ones: the rate climbs, stays, and falls to nothing."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    for update in range(lesson.updates):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (update + 1) / WARM_UP, 2 * (1 - update / lesson.updates))
        ids, learned = batch(
            tokenizer, [demonstrate(generator("pupil", seed, done + update, row), lesson) for row in range(BATCH)]
        )
        states = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1][learned[:, 1:]]
        loss = torch.nn.functional.cross_entropy(model.lm_head(states), ids[:, 1:][learned[:, 1:]])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (update + 1) % 100 == 0:
            logger.info(
                "update %d: loss %.3f, %.0f CPU-s", done + update + 1, float(loss.detach()), time.process_time()
            )


def main() -> None:
    """`python -m r2v.bundled.toy_policy --output DIR`."""
    parser = argparse.ArgumentParser(description="Make the bundled pupil again, by its recipe.")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    setup()
    school(arguments.output, arguments.seed)


if __name__ == "__main__":
    main()
