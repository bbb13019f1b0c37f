"""Arms of hierarchical training at equal compute, seed by seed: the source of the second answer's gain.

    python benchmarks/hrl_study.py --minutes 90                     # resumes where the last call ended
    python benchmarks/hrl_study.py --arms full --seeds 1            # chosen arms and seeds
    python benchmarks/hrl_study.py --factors 1 0.3333 3             # then a grid of rates, under the first seed
    python benchmarks/hrl_study.py --chosen                         # then all seeds at the rates that `tune` chose
    python benchmarks/hrl_study.py --table                          # of all finished runs

Every run starts from the toy policy, checks as many answers (4,608) as each other and makes as many updates, with
configs/hierarchical/words.yaml in float32. It is measured greedily, before and after, on 200 problems of the split
`eval`, both answers; with the first seed on 200 of `tune` too, by which rates may be chosen. The order is seed by seed
over all arms, so that the finished runs compare fairly at any moment. One line per run goes to
benchmarks/outcomes/hrl_study.jsonl, with a 0 or 1 for every problem; a finished run is not repeated.

    full             actor and guidance learn
    actor frozen     the guidance alone learns
    guidance frozen  the actor alone learns, from the hints of the untrained guidance
    no hints         the actor is asked again without a hint; its answers may be longer by a hint's tokens
    oracle hints     every hint names the right first step and its result; the actor learns
    random hints     every hint names a first step with a number drawn at random; the actor learns
    grpo, rloo       one answer a problem, eight to compare; no critic, no hints
    sft              the actor is trained on as many right answers as the others have checked
    distilled        the guidance alone learns in the first two thirds of the iterations; in the last third the actor
                     answers with its hints, and its own right second answers are its targets for first answers

A factor multiplies all learning rates of an arm but the critic's; at 1 they are the configuration's own, which were
tuned for the arm `full`.

A third of the answers (24 problems per iteration; lines of 24 episodes in the file) is too few: with the actor frozen,
nothing was learned then at any rate.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.hrl_study_page import chosen, finished_runs, picture, right, table
from r2v.config import Config, HierarchicalConfig, load
from r2v.hrl.algorithm.training_batch import POLICY_STATISTICS, TrainingBatch, policy_loss_fn
from r2v.hrl.rollout.episode import play_many
from r2v.hrl.tasks.problems import Problem
from r2v.hrl.tasks.prompts import Prompter, Round
from r2v.hrl.tasks.word_problems import OPERATIONS, Split, apply, word_problems
from r2v.hrl.training.build import build_trainer
from r2v.hrl.training.optimizer_step import Network, optimizer_step
from r2v.hrl.training.trainer import Trainer
from r2v.hrl.types import Completion
from r2v.randomness import generator

FACTORS = (1.0, round(1 / 3, 4), 3.0)
SEEDS = (1, 2, 3, 4, 5)
SIZE = ["policy.dtype=float32"]
"""Override of every run: half the bits of the configuration's dtype."""
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
    "sft": NO_HINTS,
    "rloo": [*GROUPS, "hierarchical.advantage=rloo"],
    "distilled": [f"hierarchical.lr={FROZEN}"],
}
WORDS = {"buys": "sum", "finds": "sum", "loses": "difference", "sells": "difference", "of": "product"}


class ToldPrompter(Prompter):
    """A prompter whose requests for a better answer carry the study's hint instead of the guidance's."""

    def __init__(self, tokenizer: Any, right: bool) -> None:
        super().__init__(tokenizer)
        self.right = right

    def answer(self, problem: Problem, rounds: Sequence[Round] = ()) -> tuple[int, ...]:
        """Return the prompt with this study's hints."""
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
    """Return an arm's configuration, with as many checked answers per iteration as `full`."""
    own = [*SIZE, *STUDY_ARMS[arm], f"seed={seed}"]
    h, whole = load(path, own).hierarchical, load(path, SIZE).hierarchical
    answers = whole.episodes * (1 + whole.guidance.hints)
    each = h.group if h.turns == 1 else 2 if not h.guidance.enabled else 1 + h.guidance.hints
    count = iterations or whole.iterations
    rates = {"lr": h.lr, "guidance_lr": h.guidance_lr}
    own += [f"hierarchical.{name}={rate if rate == FROZEN else rate * factor}" for name, rate in rates.items()]
    count = 2 * count // 3 if arm == "distilled" else count
    own += [f"hierarchical.episodes={answers // each}", f"hierarchical.iterations={count}"]
    return load(path, [*own, f"hierarchical.evaluate_every={count}", f"hierarchical.save_every={count}"])


def measured(trainer: Trainer, problems: Sequence[Problem]) -> list[str]:
    """Return a string of digits for each answer, 1 for a right one of a problem; greedy decoding."""
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
    return ["".join(str(int(episode.turns[turn].score >= 0.5)) for episode in episodes) for turn in range(2)]


def shown_right_answers(trainer: Trainer, h: HierarchicalConfig, seed: int) -> None:
    """Train on labels: as many as the others' checked answers, in as many updates; the same optimizer."""
    end = trainer.roles.tokenizer.eos_token_id
    updates = h.iterations * h.updates
    rows = h.iterations * h.episodes * 2 // updates
    chosen = [generator(seed, "sft", update).choices(trainer.problems, k=rows) for update in range(updates)]
    _show(trainer, h, h.lr, [[_label(trainer, problem, end) for problem in some] for some in chosen])


def distil(trainer: Trainer, h: HierarchicalConfig, lr: float, seed: int) -> None:
    """Train the actor on its right hinted answers as first answers: answers and updates of half as many iterations as
    were trained, at the rate it has not used so far."""
    iterations = h.iterations // 2
    episodes = play_many(
        generator(seed, "distil").sample(trainer.problems, iterations * h.episodes),
        roles=trainer.roles,
        prompter=trainer.prompter,
        checker=trainer.checker,
        h=h,
        key=(seed, "distil"),
    )
    right = [
        replace(hinted.after.answer, prompt=tuple(trainer.prompter.answer(replace(episode.problem, answer=""))))
        for episode in episodes
        for hinted in episode.hints[0]
        if hinted.after.score >= 0.5
    ]
    updates = iterations * h.updates
    draws = (generator(seed, "distil", update) for update in range(updates))
    _show(trainer, h, lr, [draw.choices(right, k=h.episodes * 2 // h.updates) for draw in draws])


def _show(trainer: Trainer, h: HierarchicalConfig, lr: float, batches: Sequence[Sequence[Completion]]) -> None:
    """Make one update for each batch of answers."""
    parameters = trainer.roles.parameters("actor")
    network = Network("actor", parameters, lr=lr, clip=h.grad_clip, micro_batch_size=64, setting="lr")
    for answers in batches:
        zeros = torch.zeros(len(answers), max(len(answer.tokens) for answer in answers), dtype=torch.float64)
        batch = TrainingBatch(
            advantage=torch.ones(len(answers), dtype=torch.float64),
            beta=torch.zeros(len(answers), dtype=torch.float64),
            behaviour=zeros,
            reference=zeros,
        )
        with trainer.roles.using("actor") as model:
            loss = policy_loss_fn(model, "cpu", answers, batch, replace(h, algorithm="reinforce", updates=1))
            optimizer_step(network, range(len(answers)), loss, POLICY_STATISTICS)


def _label(trainer: Trainer, problem: Problem, end: int) -> Completion:
    tokens = (*trainer.roles.tokenizer.encode(problem.answer, add_special_tokens=False), end)
    prompt = trainer.prompter.answer(replace(problem, answer=""))
    return Completion(
        prompt=tuple(prompt), tokens=tokens, logprobs=(0.0,) * len(tokens), ended=True, version=0, text=problem.answer
    )


class Untrained:
    """The outcomes of the untrained policy, which neither seed nor rate change: measured once for each kind of arm."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], list[str]] = {}

    def of(self, arm: str, trainer: Trainer, split: Split) -> list[str]:
        """Return the result of `measured` for the untrained policy."""
        hinted = arm if arm.endswith("hints") else ""
        key = (hinted, split, trainer.h.guidance.enabled, trainer.h.longest_answer)
        if key not in self._known:
            self._known[key] = measured(trainer, word_problems(200, 0, split))
        return self._known[key]


def run(path: Path, arm: str, seed: int, factor: float, iterations: int | None, before: Untrained) -> dict[str, Any]:
    """Return one run: its outcomes, its curve and its CPU-seconds."""
    torch.set_num_threads(1)
    config = configured(path, arm, seed, factor, iterations)
    h = config.hierarchical
    splits: tuple[Split, ...] = ("tune", "eval") if seed == SEEDS[0] else ("eval",)
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        trainer = build_trainer(config, Path(folder))
        if arm in ("oracle hints", "random hints"):
            trainer.prompter = ToldPrompter(trainer.roles.tokenizer, arm == "oracle hints")
        untrained = {name: before.of(arm, trainer, name) for name in splits}
        trainer.held_out = trainer.held_out[:8]
        lines: list[dict[str, Any]] = []
        if arm == "sft":
            shown_right_answers(trainer, h, seed)
        else:
            trainer.run()
            lines = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
        if arm == "distilled":
            distil(trainer, h, factor * load(path, SIZE).hierarchical.lr, seed)
        after = {name: measured(trainer, word_problems(200, 0, name)) for name in splits}
        seconds = time.process_time() - began
    curve = [[round(line.get(f"acc/turn{turn}", float("nan")), 4) for turn in (1, 2)] for line in lines]
    return {
        "arm": arm,
        "seed": seed,
        "factor": round(factor, 4),
        "iterations": iterations or load(path, SIZE).hierarchical.iterations,
        "episodes": load(path, SIZE).hierarchical.episodes,
        "cpu_s": round(seconds),
        "before": untrained,
        "after": after,
        "curve": [[value if value == value else None for value in pair] for pair in curve],
    }


def to_run(
    arms: Sequence[str], seeds: Sequence[int], factors: Sequence[float], runs: Sequence[dict[str, Any]]
) -> Iterator[tuple[str, int, float]]:
    """Yield the missing runs in order: all arms under each seed at the first of the rates, then the others under the
    first seed; without rates, all arms under each seed at the arm's chosen ones."""
    there = {(item["arm"], item["seed"], item["factor"]) for item in runs}
    planned = [(arm, seed, f) for f in factors for seed in (seeds if f == 1.0 else seeds[:1]) for arm in arms]
    planned += [(arm, seed, chosen(runs, arm)) for seed in seeds for arm in arms if not factors]
    yield from (item for item in planned if item not in there)


def main() -> None:
    """Run the missing arms, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("configs/hierarchical/words.yaml"))
    parser.add_argument("--arms", choices=STUDY_ARMS, nargs="+", default=list(STUDY_ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--factors", type=float, choices=FACTORS, nargs="+", default=[1.0])
    parser.add_argument("--chosen", action="store_true", help="at the rates of the grid that the split `tune` chose")
    parser.add_argument("--iterations", type=int, help="fewer than the configuration's, for a trial")
    parser.add_argument("--minutes", type=float, default=90.0, help="begin no run after this time; default: 90")
    parser.add_argument("--outcomes", type=Path, default=Path("benchmarks/outcomes/hrl_study.jsonl"))
    parser.add_argument("--table", action="store_true", help="run nothing: print the table of the finished runs")
    parser.add_argument("--picture", type=Path, help="with --table: draw the curves too, as this path and .svg")
    arguments = parser.parse_args()
    h = load(arguments.config, SIZE).hierarchical
    size = (arguments.iterations or h.iterations, h.episodes)
    if arguments.table:
        runs = finished_runs(arguments.outcomes, *size)
        print("\n".join(table(runs, list(STUDY_ARMS))))
        if arguments.picture is not None:
            picture(runs, list(STUDY_ARMS), arguments.picture)
        return
    arguments.outcomes.parent.mkdir(exist_ok=True)
    began, before, factors = time.monotonic(), Untrained(), [] if arguments.chosen else arguments.factors
    while time.monotonic() - began < 60 * arguments.minutes:
        following = next(
            to_run(arguments.arms, arguments.seeds, factors, finished_runs(arguments.outcomes, *size)), None
        )
        if following is None:
            break
        done = run(arguments.config, *following, arguments.iterations, before)
        with arguments.outcomes.open("a") as file:
            file.write(json.dumps(done, separators=(",", ":")) + "\n")
        print(
            *following, f"{done['cpu_s']} CPU-s, eval {[right(digits) for digits in done['after']['eval']]}", flush=True
        )


if __name__ == "__main__":
    main()
