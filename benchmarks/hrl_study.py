"""What makes hierarchical training's second answer better? Arms at equal compute, the same grid of rates for each.

    python benchmarks/hrl_study.py --arms full "actor frozen" --seeds 1 --factors 1     # one piece of it
    python benchmarks/hrl_study.py --table                                              # of all that has run so far

Every run starts from the toy policy, checks as many answers and makes as many updates as
configs/hierarchical/words.yaml, and is measured greedily on 200 problems of the split `tune` and 200 of `eval`, before
and after, both answers. One line a run goes to benchmarks/outcomes/hrl_study.jsonl, a 0 or 1 for every problem; a run
that is there is not run again, so pieces may be of any size (a run is about a CPU-minute). The table takes each arm's
rates by `tune` and shows `eval`.

    full             actor and guidance learn
    actor frozen     the guidance alone learns
    guidance frozen  the actor alone learns, from the hints of the untrained guidance
    no hints         the actor is asked again without a hint; its answers may have a hint's tokens more
    oracle hints     every hint names the right first step and its result; the actor learns
    random hints     every hint names a first step with a number drawn at random; the actor learns
    grpo, rloo       one answer a problem, eight to compare; no critic, no hints
    sft              the actor is shown as many right answers as the others have checked

A factor multiplies all learning rates of an arm but the critic's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from r2v.config import Config, HierarchicalConfig, load
from r2v.evaluation.statistics import FloatArray, cluster_bootstrap_ci
from r2v.hrl.algorithm.training_batch import POLICY_STATISTICS, TrainingBatch, policy_loss_fn
from r2v.hrl.rollout.episode import play_many
from r2v.hrl.tasks.problems import Problem
from r2v.hrl.tasks.prompts import Prompter, Round
from r2v.hrl.tasks.word_problems import OPERATIONS, apply, word_problems
from r2v.hrl.training.build import build_trainer
from r2v.hrl.training.optimizer_step import Network, optimizer_step
from r2v.hrl.training.trainer import Trainer
from r2v.hrl.types import Completion
from r2v.randomness import generator

OUTCOMES = Path("benchmarks/outcomes/hrl_study.jsonl")
FACTORS = (1 / 3, 1.0, 3.0)
FROZEN = 1e-12
NO_HINTS = ["hierarchical.guidance.enabled=false"]
GROUPS = [*NO_HINTS, "hierarchical.turns=1", "hierarchical.rewards=[1]", "hierarchical.group=8"]
STUDY_ARMS: dict[str, list[str]] = {
    "full": [],
    "actor frozen": [f"hierarchical.lr={FROZEN}"],
    "guidance frozen": [f"hierarchical.guidance_lr={FROZEN}"],
    "no hints": [*NO_HINTS, "hierarchical.answer_tokens=9"],
    "oracle hints": NO_HINTS,
    "random hints": NO_HINTS,
    "grpo": [*GROUPS, "hierarchical.advantage=grpo"],
    "rloo": [*GROUPS, "hierarchical.advantage=rloo"],
    "sft": NO_HINTS,
}
WORDS = {"buys": "sum", "finds": "sum", "loses": "difference", "sells": "difference", "of": "product"}


class ToldPrompter(Prompter):
    """Says in every request for a better answer what the study, and no guidance, has to hint."""

    def __init__(self, tokenizer: Any, right: bool) -> None:
        super().__init__(tokenizer)
        self.right = right

    def answer(self, problem: Problem, rounds: Sequence[Round] = ()) -> tuple[int, ...]:
        """The prompt with this study's hints."""
        return super().answer(problem, [(answer, self._hint(problem.text)) for answer, _ in rounds])

    def _hint(self, text: str) -> str:
        first = text.split(".")[0]
        a, b = (int(number) for number in re.findall(r"\d+", first))
        operation = next(name for word, name in WORDS.items() if word in first.split())
        if self.right:
            return f"{operation} is {apply(operation, a, b)}"  # type: ignore[arg-type]
        draw = generator("study hints", text)
        return f"{draw.choice(OPERATIONS)} is {draw.randint(1, 50)}"


def configured(path: Path, arm: str, seed: int, factor: float, iterations: int | None) -> Config:
    """An arm's configuration, with the answers checked an iteration of the whole method."""
    own = [*STUDY_ARMS[arm], f"seed={seed}"]
    h, whole = load(path, own).hierarchical, load(path).hierarchical
    answers = whole.episodes * (1 + whole.guidance.hints)
    each = h.group if h.turns == 1 else 2 if not h.guidance.enabled else 1 + h.guidance.hints
    count = iterations or whole.iterations
    rates = {"lr": h.lr, "guidance_lr": h.guidance_lr}
    own += [f"hierarchical.{name}={rate if rate == FROZEN else rate * factor}" for name, rate in rates.items()]
    own += [f"hierarchical.episodes={answers // each}", f"hierarchical.iterations={count}"]
    return load(path, [*own, f"hierarchical.evaluate_every={count}", f"hierarchical.save_every={count}"])


def measured(trainer: Trainer, problems: Sequence[Problem]) -> list[str]:
    """Of both answers a digit for each problem; greedy."""
    h = trainer.h if trainer.h.turns > 1 else replace(trainer.h, turns=2, rewards=[0.0, 1.0])
    episodes = play_many(
        problems,
        roles=trainer.roles,
        prompter=trainer.prompter,
        checker=trainer.checker,
        h=h,
        key=("measured",),
        temperature=0.0,
        hints=1,
    )
    return ["".join(str(int(one.turns[turn].score >= 0.5)) for one in episodes) for turn in range(2)]


def shown_right_answers(trainer: Trainer, h: HierarchicalConfig, seed: int) -> None:
    """As many updates and labels as the others have updates and checked answers; the same optimizer."""
    network = Network(
        "actor", trainer.roles.parameters("actor"), lr=h.lr, clip=h.grad_clip, micro_batch_size=64, setting="lr"
    )
    end = trainer.roles.tokenizer.eos_token_id
    updates = h.iterations * h.updates
    rows = h.iterations * h.episodes * 2 // updates
    for update in range(updates):
        chosen = generator(seed, "sft", update).choices(trainer.problems, k=rows)
        said = [_label(trainer, problem, end) for problem in chosen]
        known = torch.zeros(rows, max(len(one.tokens) for one in said), dtype=torch.float64)
        batch = TrainingBatch(
            advantage=torch.ones(rows, dtype=torch.float64),
            beta=torch.zeros(rows, dtype=torch.float64),
            behaviour=known,
            reference=known,
        )
        with trainer.roles.using("actor") as model:
            loss = policy_loss_fn(model, "cpu", said, batch, replace(h, algorithm="reinforce", updates=1))
            optimizer_step(network, range(rows), loss, POLICY_STATISTICS)


def _label(trainer: Trainer, problem: Problem, end: int) -> Completion:
    tokens = (*trainer.roles.tokenizer.encode(problem.answer, add_special_tokens=False), end)
    prompt = trainer.prompter.answer(replace(problem, answer=""))
    return Completion(
        prompt=tuple(prompt), tokens=tokens, logprobs=(0.0,) * len(tokens), ended=True, version=0, text=problem.answer
    )


def run(path: Path, arm: str, seed: int, factor: float, iterations: int | None) -> dict[str, Any]:
    """One run: its outcomes, its curve and what it took."""
    torch.set_num_threads(1)
    config = configured(path, arm, seed, factor, iterations)
    h, splits = config.hierarchical, {name: word_problems(200, 0, name) for name in ("tune", "eval")}
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        trainer = build_trainer(config, Path(folder))
        if arm in ("oracle hints", "random hints"):
            trainer.prompter = ToldPrompter(trainer.roles.tokenizer, arm == "oracle hints")
        before = {name: measured(trainer, problems) for name, problems in splits.items()}
        trainer.held_out = trainer.held_out[:8]
        lines: list[dict[str, Any]] = []
        if arm == "sft":
            shown_right_answers(trainer, h, seed)
        else:
            trainer.run()
            lines = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
        after = {name: measured(trainer, problems) for name, problems in splits.items()}
        seconds = time.process_time() - began
    curve = [[round(line.get(f"acc/turn{turn}", float("nan")), 4) for turn in (1, 2)] for line in lines]
    return {
        "arm": arm,
        "seed": seed,
        "factor": round(factor, 4),
        "iterations": h.iterations,
        "cpu_s": round(seconds),
        "before": before,
        "after": after,
        "curve": [[one if one == one else None for one in pair] for pair in curve],
    }


def known() -> list[dict[str, Any]]:
    """The runs that there are."""
    return [json.loads(line) for line in OUTCOMES.read_text().splitlines()] if OUTCOMES.exists() else []


def _digits(runs: list[dict[str, Any]], when: str, split: str, turn: int) -> FloatArray:
    """(problems, seeds) of 0 and 1."""
    return np.array([[float(digit) for digit in one[when][split][turn]] for one in runs]).T


def _percent(values: FloatArray) -> str:
    low, high = cluster_bootstrap_ci(values)
    return f"{100 * values.mean():.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def table(iterations: int) -> list[str]:
    """Markdown: per arm the factor that was best on `tune`, and `eval` under it; intervals over problems."""
    rows = [
        "| arm | rates | seeds | answer 1, untrained | trained | answer 2, untrained | trained | CPU-s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for arm in STUDY_ARMS:
        mine = [one for one in known() if one["arm"] == arm and one["iterations"] == iterations]
        groups = {
            factor: [one for one in mine if one["factor"] == factor] for factor in {one["factor"] for one in mine}
        }
        if not groups:
            rows.append(f"| {arm} | not run | | | | | | |")
            continue
        best = max(groups, key=lambda factor: (_digits(groups[factor], "after", "tune", 1).mean(), -factor))
        runs = groups[best]
        cells = [_percent(_digits(runs, when, "eval", turn)) for turn in range(2) for when in ("before", "after")]
        tried = f"x{best:g} of {len(groups)}"
        seconds = np.mean([one["cpu_s"] for one in runs])
        rows.append(f"| {arm} | {tried} | {len(runs)} | {' | '.join(cells)} | {seconds:.0f} |")
    return rows


def main() -> None:
    """Run what is asked for and has not run, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("configs/hierarchical/words.yaml"))
    parser.add_argument("--arms", choices=STUDY_ARMS, nargs="+", default=list(STUDY_ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--factors", type=float, nargs="+", default=list(FACTORS))
    parser.add_argument("--iterations", type=int, help="fewer than the configuration's, for a look")
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    iterations = asked.iterations or load(asked.config).hierarchical.iterations
    if not asked.table:
        OUTCOMES.parent.mkdir(exist_ok=True)
        for seed in asked.seeds:
            for factor in asked.factors:
                for arm in asked.arms:
                    key = (arm, seed, round(factor, 4), iterations)
                    if key in {(one["arm"], one["seed"], one["factor"], one["iterations"]) for one in known()}:
                        continue
                    done = run(asked.config, arm, seed, factor, asked.iterations)
                    with OUTCOMES.open("a") as file:
                        file.write(json.dumps(done, separators=(",", ":")) + "\n")
                    print(arm, seed, round(factor, 4), f"{done['cpu_s']} CPU-s", flush=True)
    print("\n".join(table(iterations)))


if __name__ == "__main__":
    main()
