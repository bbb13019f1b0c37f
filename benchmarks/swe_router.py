"""SWE-Router (arXiv 2607.00053): one handover of the episode to the LLM, once the LLM is likelier to finish it.

Two heads are fitted on states that the small policy reached alone (round 0 of the router's features), from step
`FIRST_STEP` on: the probability of success if the small policy continues alone, and if the LLM acts from this state to
the end. The first label is the recorded episode's; the second is one play per state, from the state's snapshot with the
episode's own random draws (some 14 CPU-milliseconds each on desk). The score is the second probability less the first,
mapped to [0, 1]; once it reaches the threshold, the LLM acts to the end. The threshold replaces the paper's price of
the LLM and is placed at equal dollars.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.rivals import features_of
from benchmarks.routing_tree import EVER, Node, Rival, RoutingTree
from r2v.config import Config
from r2v.evaluation.acting.methods import MethodRunner
from r2v.rollout.session import EpisodeSpec, episode_specs
from r2v.router.baselines import Instruments
from r2v.router.labels import FeatureRow
from r2v.router.models import RouterModel
from r2v.router.training import fit
from r2v.stages.router_settings import RouterFeaturesSettings
from r2v.storage.files import write_json

SWE_ROUTER = "swe_router"
FIRST_STEP = 3
"""Turns of the small policy before the decision."""
CHUNK = 64
"""Trees in memory at once."""


def decision_states(rows: Sequence[FeatureRow]) -> list[FeatureRow]:
    """Return round-0 rows from the first step on at which the episode may be handed over."""
    return [row for row in rows if row.round == 0 and row.step_idx >= FIRST_STEP]


def llm_outcomes(runner: MethodRunner, config: Config, rows: Sequence[FeatureRow], path: Path) -> dict[str, bool]:
    """Return the LLM's success from each decision state to the end. Read from `path`, or played and written there;
    states in which the world broke are left out."""
    if path.exists():
        stored: dict[str, bool] = json.loads(path.read_text())
        return stored
    began = time.process_time()
    steps: dict[str, set[int]] = {}
    for row in decision_states(rows):
        steps.setdefault(row.episode_id, set()).add(row.step_idx)
    specs = {runner.world.identity_of(spec): spec for spec in _first_round(config, runner)}
    outcomes: dict[str, bool] = {}
    episodes = sorted(steps)
    for at in range(0, len(episodes), CHUNK):
        chunk = episodes[at : at + CHUNK]
        plays = [partial(played_on, RoutingTree(runner, specs[episode]), steps[episode]) for episode in chunk]
        for episode, endings in zip(chunk, runner.waves.run(plays), strict=True):
            outcomes |= {f"{episode}#{step}": success for step, success in endings.items()}
    print(f"{SWE_ROUTER}: {len(outcomes)} plays of the LLM, {time.process_time() - began:.1f} CPU-s", flush=True)
    write_json(path, outcomes)
    return outcomes


def _first_round(config: Config, runner: MethodRunner) -> list[EpisodeSpec]:
    """Return the small policy's own episodes that the router's features come from."""
    cfg = RouterFeaturesSettings.of(config)
    return [
        spec
        for split, count in (("train", cfg.router.num_tasks), ("calibration", cfg.router.num_calibration_tasks))
        for spec in episode_specs(
            runner.world.benchmark, split, cfg.router.seeds, cfg.tasks, method="slm_only", limit=count
        )
    ]


async def played_on(tree: RoutingTree, steps: set[int]) -> dict[int, bool]:
    """Return the success of the LLM from these steps of the small policy's episode to the end."""
    outcomes: dict[int, bool] = {}
    node, step = await tree.root(), 0
    while node.point is not None and step <= max(steps):
        if step in steps:
            ending = node
            while ending.point is not None:
                ending = await tree.below(ending, True)
            if ending.fault is None:
                outcomes[step] = ending.success
        node, step = await tree.below(node, False), step + 1
    return outcomes


def swe_router(config: Config, rows: Sequence[FeatureRow], outcomes: Mapping[str, bool]) -> Rival:
    """Return the baseline with its heads fitted on these outcomes and on the recorded episodes."""
    states = decision_states(rows)
    small = _head(states, {row.state_id: bool(row.slm_episode_success) for row in states}, config)
    large = _head(states, outcomes, config)

    async def judged(tree: RoutingTree, node: Node) -> tuple[float, float]:
        assert node.view is not None
        if node.view.step < FIRST_STEP:
            return 0.0, 0.0
        features, read = await features_of(tree, node, Instruments())
        return (1 + large.predict(features) - small.predict(features)) / 2, read

    return Rival(name=SWE_ROUTER, judged=judged, stays=EVER)


def _head(states: Sequence[FeatureRow], succeeds: Mapping[str, bool], config: Config) -> RouterModel:
    """Return the calibrated chance of success, fitted with the model of r2v's router."""
    labelled = [
        replace(row, y_escalate=int(succeeds[row.state_id]), y_source="episode")
        for row in states
        if row.state_id in succeeds
    ]
    return fit(labelled, replace(config.router, label="episode"), config.seed)
