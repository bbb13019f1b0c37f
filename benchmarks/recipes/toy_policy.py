"""Bundled toy policy of the word problems: its tokenizer, its tiny decoder, and the recipe of its pretraining.

    python -m benchmarks.recipes.toy_policy --output r2v/bundled/weights/toy

It is pretrained on written demonstrations of both roles, made from problems of the `train` split alone: an answer to a
problem; a hint to an answer; a revised answer after a hint, or after none. The demonstrations are imperfect on purpose.
Of hints, one in five names the right first step and its result ("sum is 11"), another one in five a wrong one, and the
rest read "keep it" or "look again"; of answers after a hint, one in seven repeats the previous one. The decoder has one
convolution layer, which lets a number see its neighbours, and one attention layer, which combines numbers; so it does
one step of a problem well and two at once badly. That leaves room for reinforcement learning: to hint at the first step
rather than at nothing, and to follow the hint. No hint contains the answer: where the first step's result is the
answer, another hint is given.
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

from r2v.hrl.tasks import word_problems
from r2v.hrl.tasks.prompts import hint_request, revision_request
from r2v.log import logger, setup
from r2v.policy.export import export
from r2v.policy.load import Loaded
from r2v.randomness import generator
from r2v.storage.files import write_json
from r2v.storage.weights import BUNDLED

TOY_SPECIAL_TOKENS = ("<pad>", "<unk>", "<user>", "<reply>", "<eos>")
KEEP, LOOK = "keep it", "look again"
CORPUS = (
    revision_request(""),
    hint_request(0),
    KEEP,
    LOOK,
    "? is",
    word_problems.QUESTION,
    *word_problems.OPERATIONS,
    *word_problems.PEOPLE,
    *word_problems.OBJECTS,
    *(text for texts in (*word_problems.FIRST_STEP.values(), *word_problems.SECOND_STEP.values()) for text in texts),
)
"""All text of prompts and replies, without numbers; its words are the vocabulary."""

TOY_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}<user>{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' %}<reply>"
    "{% generation %}{{ message['content'] }}<eos>{% endgeneration %}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<reply>{% endif %}"
)
"""A conversation as one sequence; the system message is dropped, every reply ends in <eos>."""

TOY_DIR = BUNDLED["toy"]
"""The shipped weights: `policy.model_name=toy`."""

_WORD = r"\w+|[^\w\s]"

WIDTH = 64
SEED, BATCH, LEARNING_RATE, WARM_UP = 0, 32, 5e-3, 50
GIVEN, TRUE, MISTAKEN = (0.20, 0.20), 0.7, 0.5
"""Shares of demonstrated hints that name the right first step, and a wrong one; share of right judgements among hints
that name none; share of wrong steps with an arbitrary result."""
STUBBORN, UNHINTED, SCORED = 0.15, 0.15, 0.2
"""Shares of later answers that repeat the previous one, and that follow no hint; share of hints that see the score."""
TURNS = 3
"""Answers in a demonstration, at most."""


@dataclass(frozen=True, kw_only=True)
class ToyPretrainingStage:
    """A stage of the pretraining curriculum."""

    updates: int
    right: float
    """Share of first answers that are right, and trained on."""
    hinted: float
    """Share of demonstrations that end in a hint, at each turn that allows one."""
    taken: tuple[float, float]
    """Shares of hints before demonstrated answers that name the right first step, and a wrong one."""
    idle: float
    """Share of answers that repeat the previous one if no step was named."""


TOY_CURRICULUM = (
    ToyPretrainingStage(updates=2500, right=0.35, hinted=0.35, taken=(0.20, 0.55), idle=0.0),
    ToyPretrainingStage(updates=2500, right=0.15, hinted=0.45, taken=(0.40, 0.40), idle=0.7),
)
"""The first stage trains everything at once; the second mostly single steps, and few whole problems."""


@dataclass(frozen=True, kw_only=True)
class Demonstration:
    """A conversation in pieces of text, each with a flag for training: true for replies, false for prompts."""

    pieces: tuple[tuple[str, bool], ...]
    problem: word_problems.ArithmeticProblem


def vocabulary() -> tuple[str, ...]:
    """Return every token, in the order of its id."""
    words = re.sub(r"\{\w\}", " ", " ".join(CORPUS)).lower()
    numbers = [str(number) for number in range(word_problems.LARGEST_RESULT + 1)]
    return (*TOY_SPECIAL_TOKENS, *numbers, *sorted(set(re.findall(_WORD, words)) - set(numbers)))


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return the tokenizer with its chat template: one token per word, number or special token, in lower case."""
    core = Tokenizer(models.WordLevel({token: number for number, token in enumerate(vocabulary())}, "<unk>"))
    core.normalizer = normalizers.Lowercase()
    core.pre_tokenizer = pre_tokenizers.Split(Regex(_WORD), behavior="removed", invert=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<eos>",
        additional_special_tokens=["<user>", "<reply>"],
        chat_template=TOY_CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


def build_model(seed: int) -> Lfm2ForCausalLM:
    """Return the model before pretraining: random weights that depend on `seed` alone, in float32."""
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
        eos_token_id=TOY_SPECIAL_TOKENS.index("<eos>"),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Lfm2ForCausalLM(config)


def demonstrate(
    draw: random.Random, stage: ToyPretrainingStage = TOY_CURRICULUM[-1], split: word_problems.Split = "train"
) -> Demonstration:
    """Return one conversation of answers with or without hints, which ends in a hint or an answer."""
    problem = word_problems.draw_problem(draw, split)
    pieces = [(f"<user>{word_problems.wording(problem, draw)}<reply>", False)]
    right = draw.random() < stage.right
    answer = problem.answer if right else _wrong(problem, draw)
    pieces.append((f"{answer}<eos>", right))
    for _ in range(1, TURNS):
        correct = answer == problem.answer
        if draw.random() < stage.hinted:
            score = float(correct) if draw.random() < SCORED else None
            pieces += [
                (f"<user>{hint_request(score)}<reply>", False),
                (f"{_hint(problem, correct, GIVEN, draw, score)}<eos>", True),
            ]
            break
        hint = None if draw.random() < UNHINTED else _hint(problem, correct, stage.taken, draw)
        answer = _revised(problem, answer, hint, stage, draw)
        pieces += [(f"<user>{revision_request(hint)}<reply>", False), (f"{answer}<eos>", True)]
    return Demonstration(pieces=tuple(pieces), problem=problem)


def step_hint(operation: word_problems.Operation, value: int) -> str:
    """Return a hint that names a first step and its result."""
    return f"{operation} is {value}"


def _hint(
    problem: word_problems.ArithmeticProblem,
    correct: bool,
    shares: tuple[float, float],
    draw: random.Random,
    score: float | None = None,
) -> str:
    """Return a demonstrated hint to an answer. Without the score its verdict is right with probability `TRUE`."""
    kind, (step, slip) = draw.random(), shares
    if kind < step and problem.step != problem.answer:
        return step_hint(problem.first, problem.step)
    if step <= kind < step + slip:
        operation = draw.choice([other for other in word_problems.OPERATIONS if other != problem.first])
        value = word_problems.apply(operation, problem.a, problem.b)
        if not 0 <= value <= word_problems.LARGEST_RESULT or draw.random() < MISTAKEN:
            value = draw.randint(1, word_problems.LARGEST_RESULT)
        if value != problem.answer:
            return step_hint(operation, value)
    judged = correct == (score is not None or draw.random() < TRUE)
    return KEEP if judged else LOOK


def _revised(
    problem: word_problems.ArithmeticProblem,
    before: int,
    hint: str | None,
    stage: ToyPretrainingStage,
    draw: random.Random,
) -> int:
    """Return a demonstrated answer after a hint: the result of the named step; the previous answer if the hint keeps
    it, or with probability `STUBBORN` or `idle`; else the right one."""
    if hint == KEEP or draw.random() < STUBBORN:
        return before
    if hint is not None and hint != LOOK:
        revised = word_problems.apply(problem.second, int(hint.split()[-1]), problem.c)
        if 0 <= revised <= word_problems.LARGEST_RESULT:
            return revised
    return before if stage.idle and draw.random() < stage.idle else problem.answer


def _wrong(problem: word_problems.ArithmeticProblem, draw: random.Random) -> int:
    """Return a wrong answer: the first step alone, a slip of one or two, another operation, or a guess."""
    slips = [
        problem.step,
        problem.answer + draw.choice((-2, -1, 1, 2)),
        word_problems.apply(draw.choice(word_problems.OPERATIONS), problem.step, problem.c),
        word_problems.apply(
            problem.second, word_problems.apply(draw.choice(word_problems.OPERATIONS), problem.a, problem.b), problem.c
        ),
        draw.randint(1, word_problems.LARGEST_RESULT),
    ]
    slip = draw.choice(slips)
    if slip != problem.answer and 1 <= slip <= word_problems.LARGEST_RESULT:
        return slip
    return (problem.answer + draw.randint(1, 9)) % word_problems.LARGEST_RESULT


def batch(tokenizer: Any, demonstrations: Sequence[Demonstration]) -> tuple[Tensor, Tensor]:
    """Return ids (N, T), padded at the end, and which of them are trained on (N, T), bool."""
    rows = [
        [(tokenizer(text).input_ids, learned) for text, learned in demonstration.pieces]
        for demonstration in demonstrations
    ]
    width = max(sum(len(ids) for ids, _ in row) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    learned = torch.zeros(len(rows), width, dtype=torch.bool)
    for index, row in enumerate(rows):
        begin = 0
        for tokens, is_reply in row:
            ids[index, begin : begin + len(tokens)] = torch.tensor(tokens)
            learned[index, begin : begin + len(tokens)] = is_reply
            begin += len(tokens)
    return ids, learned


def pretrain(output: Path, seed: int = SEED, curriculum: Sequence[ToyPretrainingStage] = TOY_CURRICULUM) -> None:
    """Pretrain a toy policy and write it with its tokenizer and `recipe.json` into `output` (about 5 CPU-minutes)."""
    torch.set_num_threads(1)
    begun, done = time.process_time(), 0
    tokenizer, model = build_tokenizer(), build_model(seed)
    for stage in curriculum:
        _train_stage(model, tokenizer, stage, seed, done)
        done += stage.updates
    recipe = {
        "seed": seed,
        "curriculum": [asdict(stage) for stage in curriculum],
        "parameters": model.num_parameters(),
        "cpu_seconds": round(time.process_time() - begun),
    }
    export(Loaded(model=model, tokenizer=tokenizer, name="toy"), output)
    write_json(output / "recipe.json", recipe)


def _train_stage(model: Lfm2ForCausalLM, tokenizer: Any, stage: ToyPretrainingStage, seed: int, done: int) -> None:
    """Train one stage of the curriculum after `done` earlier updates: warm-up, constant learning rate, linear
    decay."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    for update in range(stage.updates):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (update + 1) / WARM_UP, 2 * (1 - update / stage.updates))
        ids, learned = batch(
            # The key keeps the word that the shipped weights were drawn with; another one would give other weights.
            tokenizer,
            [demonstrate(generator("pupil", seed, done + update, row), stage) for row in range(BATCH)],
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
    """`python -m benchmarks.recipes.toy_policy --output DIR`."""
    parser = argparse.ArgumentParser(description="Pretrain the bundled toy policy again, by its recipe.")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    if arguments.output.exists():  # export replaces no folder outside an attempt: said before minutes of training
        parser.error(f"--output {arguments.output}: is there already; remove it, or name a new folder")
    setup()
    pretrain(arguments.output, arguments.seed)


if __name__ == "__main__":
    main()
