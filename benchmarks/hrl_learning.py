"""Hierarchical training on held-out problems: both answers before and after, with ablations of guidance and critic.

    python benchmarks/hrl_learning.py                     # three seeds of three arms
    python benchmarks/hrl_learning.py --split tune        # the same on the problems for tuning

All arms start from the same toy policy, train on the same problems and are measured on the same held-out ones,
greedily:

    full          configs/hierarchical.yaml: critic, actor, and a guidance that learns to give hints
    no guidance   hierarchical.guidance.enabled=false: the second answer sees the first one, and no hint
    reinforce     plain REINFORCE: no guidance and no critic (hierarchical.advantage=score); each answer is weighted by
                  the actor's reward from it on, less the mean of the other episodes; one update per iteration, no
                  ratio and no warm-up; same optimizer, rate and KL

An arm without hints plays more problems per iteration, so that all arms check equally many answers; plain REINFORCE
makes one update where the others make several, so it has more iterations, and so more answers. The rates were tuned on
`full` alone. Intervals are 95 % for the mean over problems, which are drawn whole: a problem's seeds stay together.
Before/after and arm/arm comparisons are paired by problem.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from r2v.config import Config, load
from r2v.evaluation.measures.statistics import FloatArray, cluster_bootstrap_ci, paired_difference
from r2v.hrl.rollout.episode import play_many
from r2v.hrl.tasks.word_problems import word_problems
from r2v.hrl.training.build import build_trainer
from r2v.hrl.training.trainer import Trainer

ARMS: dict[str, list[str]] = {
    "full": [],
    "no guidance": ["hierarchical.guidance.enabled=false"],
    "reinforce": [
        "hierarchical.guidance.enabled=false",
        "hierarchical.advantage=score",
        "hierarchical.algorithm=reinforce",
        "hierarchical.updates=1",
    ],
}


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One arm under one seed: scores (problems, turns) before and after, answers, tokens and seconds."""

    before: FloatArray
    after: FloatArray
    answers: int
    tokens: int
    seconds: float


def measured(trainer: Trainer) -> FloatArray:
    """Return scores (problems, turns) of the held-out problems, decoded greedily."""
    episodes = play_many(
        trainer.held_out,
        roles=trainer.roles,
        prompter=trainer.prompter,
        checker=trainer.checker,
        h=trainer.h,
        key=("measured",),
        temperature=0.0,
        hints=1,
    )
    return np.array([[turn.score for turn in episode.turns] for episode in episodes])


def ran(config: Config, split: str) -> Ran:
    """Train an arm from the toy policy, in a folder that is thrown away."""
    torch.set_num_threads(1)
    h = config.hierarchical
    with tempfile.TemporaryDirectory() as name:
        begun = time.process_time()
        trainer = build_trainer(config, Path(name))
        if split == "tune":
            trainer.held_out = word_problems(h.problems.held_out, 0, "tune")
        before = measured(trainer)
        trainer.run()
        after = measured(trainer)
        lines = [json.loads(line) for line in (Path(name) / "metrics.jsonl").read_text().splitlines()]
        seconds = time.process_time() - begun
    return Ran(
        before=before,
        after=after,
        answers=h.iterations * h.episodes * checked(h.guidance.enabled, config),
        tokens=int(sum(line["rollout/tokens"] for line in lines)),
        seconds=seconds,
    )


def checked(guided: bool, config: Config) -> int:
    """Return the number of an episode's checked answers."""
    h = config.hierarchical
    return 1 + (h.turns - 1) * (h.guidance.hints if guided else 1)


def configured(path: Path, arm: str, seed: int, overrides: list[str]) -> Config:
    """Return an arm's configuration: as many answers per iteration as `full`, and iterations for as many updates."""
    own = [*overrides, *ARMS[arm], f"seed={seed}"]
    config = load(path, own)
    full, mine = checked(True, config), checked(config.hierarchical.guidance.enabled, config)
    iterations = (
        config.hierarchical.iterations * load(path, overrides).hierarchical.updates // config.hierarchical.updates
    )
    episodes = config.hierarchical.episodes * full // mine
    return load(
        path,
        [
            *own,
            f"hierarchical.episodes={episodes}",
            f"hierarchical.iterations={iterations}",
            f"hierarchical.evaluate_every={iterations}",
            f"hierarchical.save_every={iterations}",
        ],
    )


def shown(values: FloatArray) -> str:
    """Return a mean over problems (problems, seeds) in per cent, with its interval."""
    low, high = cluster_bootstrap_ci(values)
    return f"{100 * values.mean():5.1f} [{100 * low:5.1f}, {100 * high:5.1f}]"


def apart(what: str, a: FloatArray, b: FloatArray) -> None:
    """Print a - b of scores (problems, seeds)."""
    paired = paired_difference(a, b)
    low, high = paired.interval
    print(
        f"  {what:<58}{100 * paired.difference:+6.1f} [{100 * low:+6.1f}, {100 * high:+6.1f}]  p {paired.p_value:.4f}"
    )


def printed(results: dict[str, list[Ran]], seeds: list[int]) -> None:
    """Print all arms, then their differences."""
    before = {arm: np.stack([run.before for run in runs], 1) for arm, runs in results.items()}
    after = {arm: np.stack([run.after for run in runs], 1) for arm, runs in results.items()}
    problems = len(before["full"])
    print(f"\n{problems} held-out problems, {len(seeds)} seeds {seeds}; right answers in % with 95 % intervals")
    print(f"{'':<14}{'':<11}{'answer 1':>21}{'answer 2':>23}{'wrong->right':>14}{'right->wrong':>14}")
    for arm in results:
        for name, scores in (("untrained", before[arm]), ("trained", after[arm])):
            first, last = scores[..., 0], scores[..., -1]
            print(
                f"{arm:<14}{name:<11}{shown(first):>21}{shown(last):>23}{100 * ((1 - first) * last).mean():>13.1f}"
                f"{100 * (first * (1 - last)).mean():>14.1f}"
            )
    print("\ncost per seed: answers checked, tokens generated, CPU seconds; accuracy of answer 2 by seed")
    for arm, runs in results.items():
        own = "  ".join(f"{100 * run.after[:, -1].mean():.1f}" for run in runs)
        print(
            f"{arm:<14}{runs[0].answers:>8}{np.mean([run.tokens for run in runs]):>10.0f}"
            f"{np.mean([run.seconds for run in runs]):>8.0f}    {own}"
        )
    print("\ndifferences in points, paired by problem")
    full = after["full"]
    apart("full: answer 2 less answer 1, trained", full[..., -1], full[..., 0])
    for arm in results:
        apart(f"{arm}: answer 2, trained less untrained", after[arm][..., -1], before[arm][..., -1])
    for arm in [arm for arm in results if arm != "full"]:
        apart(f"answer 2, trained: full less {arm}", full[..., -1], after[arm][..., -1])
        apart(f"answer 1, trained: full less {arm}", full[..., 0], after[arm][..., 0])


def main() -> None:
    """Run all arms under all seeds and print their results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("configs/hierarchical.yaml"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--split", choices=("eval", "tune"), default="eval")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side, a core each")
    parser.add_argument("--arms", choices=ARMS, nargs="+", default=list(ARMS), help="full is always among them")
    parser.add_argument("--overrides", nargs="+", default=[])
    arguments = parser.parse_args()
    order = [(seed, arm) for seed in arguments.seeds for arm in ARMS if arm in ("full", *arguments.arms)]
    configs = [configured(arguments.config, arm, seed, arguments.overrides) for seed, arm in order]
    results: dict[str, list[Ran]] = {}
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        for (seed, arm), outcome in zip(order, pool.map(ran, configs, repeat(arguments.split)), strict=True):
            results.setdefault(arm, []).append(outcome)
            print(
                f"seed {seed} {arm:<12} answers 1, 2: untrained {outcome.before.mean(0).round(3)}, trained "
                f"{outcome.after.mean(0).round(3)}, {outcome.seconds:.0f} CPU-s",
                flush=True,
            )
    printed(results, arguments.seeds)


if __name__ == "__main__":
    main()
