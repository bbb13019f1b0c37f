"""Staying with the LLM for several steps per asking, at list prices and with the endpoint's prompt cache.

    python -m benchmarks.stay --config configs/mrp.yaml --model anthropic:claude-sonnet-4-6 --page 1500

A cache makes the LLM's next step cheap (its prompt was just sent), and a later one expensive (the small policy's steps
in between are new to it). So r2v's router is played with one to five LLM steps per asking, and with the LLM to the end,
at twelve thresholds each, as walks over trees of executed steps (`benchmarks/routing_tree.py`) on calibration tasks;
all are swept on the tasks they are scored on, so all are equally optimistic. Decisions are priced as in
`benchmarks/cached_cost.py`, each page as long as `--page`, the small policy with a prefix cache of its own. Printed:
the area under the curve of success over cost (APGR) at list prices and with the cache, and its lead over one step per
asking, with 95 % intervals over tasks.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.cached_cost import Lengths, llm_usd, price_of
from benchmarks.placing import walks
from benchmarks.rivals import rivals
from benchmarks.routing_tree import EVER, RoutingTree, Walked, own_score
from benchmarks.students import student
from r2v.config import Config, load
from r2v.config.methods import OURS
from r2v.console import text_table
from r2v.evaluation.measures.frontier import Curve
from r2v.evaluation.measures.statistics import FloatArray, percentile_interval
from r2v.evaluation.settings import EvaluateSettings
from r2v.rollout.bill import PromptCache
from r2v.router.escalation import SCORE_ONLY
from r2v.router.labels import FeatureRow

STAYS = (1, 2, 3, 5, EVER)
THRESHOLDS, RESAMPLES = 12, 2000


def local_usd(walked: Walked, stays: int, lengths: Lengths, config: Config) -> float:
    """Return the USD of the small policy, which reads each token once and is not called while the LLM stays."""
    total, tokens_read, until = 0.0, 0, 0
    for index, llm_step in enumerate(walked.asked):
        if index < until:
            continue
        new, tokens_read = max(0, lengths.prompt(index) - tokens_read), lengths.prompt(index)
        total += new * config.cost.slm.input + lengths.action * config.cost.slm.output
        until = index + stays if llm_step else 0
    return total / 1e6


def swept(
    trees: Sequence[RoutingTree], rows: Sequence[FeatureRow], config: Config, lengths: Lengths, model: str
) -> dict[int, tuple[FloatArray, FloatArray]]:
    """Return stays -> USD of each task and point at list prices and with the cache, (2, T, P), and success, (T, P). The
    first two points are the small policy alone and the LLM alone."""
    rate = price_of(model)
    cache = PromptCache.of(rate.input, config.cost, rate.cached, rate.write_5m)
    runner = trees[0].runner
    ours = own_score(rivals(config, rows, {task.task_id: task.goal for task in runner.world.benchmark.tasks()})[OURS])
    (alone,) = walks(trees, [(ours, SCORE_ONLY)])
    scores = [score for walk in alone for score in walk.scores if 0 < score < 1]
    taus = [1.0, 0.0, *np.quantile(scores, np.linspace(0.4, 0.98, THRESHOLDS)).tolist()]
    by_stays = {}
    for stays in STAYS:
        columns = walks(trees, [(replace(ours, stays=stays), tau) for tau in taus])
        usd, success = np.zeros((2, len(trees), len(taus))), np.zeros((len(trees), len(taus)))
        for at, (tau, column) in enumerate(zip(taus, columns, strict=True)):
            for row, walk in enumerate(column):
                own = 0.0 if tau <= 0 else local_usd(walk, stays, lengths, config)
                usd[:, row, at] = np.add(llm_usd(walk.asked, lengths, rate, cache), own)
                success[row, at] = walk.success
        by_stays[stays] = usd, success
    return by_stays


def areas(usd: FloatArray, success: FloatArray) -> FloatArray:
    """Return the APGR of (T, P) costs and successes: the estimate, then of `RESAMPLES` draws of tasks, the same for
    all."""
    draw = np.random.default_rng(0).multinomial(len(usd), np.full(len(usd), 1 / len(usd)), RESAMPLES)
    weights = np.vstack([np.ones(len(usd)), draw]) / len(usd)
    cost, solved = weights @ usd, weights @ success
    ends = [(cost[:, end], solved[:, end]) for end in (0, 1)]
    return Curve.through(cost[:, 2:], solved[:, 2:], *ends).apgr()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("configs/mrp.yaml"), help="default: %(default)s")
    parser.add_argument("--model", default="anthropic:claude-sonnet-4-6", metavar="PROVIDER:NAME")
    parser.add_argument("--head", type=int, default=500, help="tokens of instructions, tools, goal (default 500)")
    parser.add_argument("--page", type=int, default=1500, help="tokens of an observation (default 1500)")
    parser.add_argument("--action", type=int, default=60, help="tokens of an action (default 60)")
    given = parser.parse_args()
    config = load(given.config)
    trained = student(config)
    specs = EvaluateSettings.of(config).calibration_specs(trained.runner.world.benchmark)
    lengths = Lengths(head=given.head, page=given.page, action=given.action)
    by_stays = swept([RoutingTree(trained.runner, spec) for spec in specs], trained.rows, config, lengths, given.model)
    table = [
        ["LLM steps per asking", "APGR, list prices", "lead over 1", "APGR, cached", "lead over 1", "LLM / SLM cached"]
    ]
    for stays, (usd, success) in by_stays.items():
        cells = ["to the end" if stays == EVER else str(stays)]
        for prices in (0, 1):
            own, one = areas(usd[prices], success), areas(by_stays[1][0][prices], by_stays[1][1])
            low, high = percentile_interval((own - one)[1:], 0.95) or (0.0, 0.0)
            cells += [f"{own[0]:.3f}", "" if stays == 1 else f"{own[0] - one[0]:+.3f} [{low:+.3f}, {high:+.3f}]"]
        table.append([*cells, f"{usd[1, :, 1].mean() / usd[1, :, 0].mean():.1f}"])
    print(f"{len(specs)} calibration tasks, pages of {given.page} tokens, {given.model}")
    print(text_table(table))


if __name__ == "__main__":
    main()
