"""Parts of an evaluation: placing thresholds, the main table, the oracle, the frontier, and executed gains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from r2v.config import METHODS
from r2v.config.methods import ORACLE, OURS, ROUTERS
from r2v.evaluation.settings import EvaluateSettings
from r2v.pipeline.plan.plan_inputs import Part, PlanInputs
from r2v.pipeline.plan.stage_parts import (
    features_of_episode,
    plays_of_choice,
    plays_of_thresholds,
    routed,
    routed_features_of_episode,
)
from r2v.pipeline.plan.workload import Workload, branches, episode


@dataclass(frozen=True, kw_only=True)
class _Plays:
    """Episodes of one method over tasks, seeds and conditions."""

    episodes: float
    blocks: int
    alone: float


def evaluate(inputs: PlanInputs) -> Sequence[Part]:
    """Return the parts of an evaluation."""
    evaluation = inputs.config.evaluation
    methods = [name for name in evaluation.played if name in ROUTERS]
    parts = [_thresholds(inputs, methods), _main(inputs, _plays(inputs, None))]
    if ORACLE in evaluation.played:
        parts.append(_oracle(inputs, _plays(inputs, evaluation.oracle_tasks, branched=True)))
    if methods:
        parts.append(_frontier(inputs, _plays(inputs, evaluation.frontier_tasks), len(methods)))
        parts.append(_gains(inputs, _plays(inputs, evaluation.gains_tasks, branched=True)))
    return parts


def _plays(inputs: PlanInputs, limit: int | None, *, branched: bool = False) -> _Plays:
    """Return one method's episodes on the first `limit` tasks (None: all); `branched`: on those that may branch."""
    evaluation, facts = inputs.config.evaluation, inputs.facts
    episodes, blocks, alone = 0.0, 0, 0.0
    splits = Counter("heldout" if condition == "heldout" else "evaluation" for condition in evaluation.conditions)
    for split, conditions in splits.items():
        tasks = (facts.branched_of_split if branched else facts.of_split)(split, evaluation.num_tasks)
        tasks = tasks if limit is None else min(tasks, limit)  # nan stays nan
        points = conditions * len(evaluation.seeds)
        episodes, blocks = episodes + tasks * points, blocks + inputs.blocks(tasks, points)
        alone += 0 if branched else tasks * points * inputs.alone(split, tasks)
    return _Plays(episodes=episodes, blocks=blocks, alone=alone / episodes if episodes else 0.0)


def _thresholds(inputs: PlanInputs, methods: Sequence[str]) -> Part:
    router, points = inputs.config.router, len(inputs.config.evaluation.operating_points)
    plays = sum(plays_of_thresholds(points + (name != OURS)) for name in methods)
    plays += plays_of_choice(inputs, points) if OURS in methods else 0
    play = routed(inputs, 1.0)
    tasks = inputs.facts.of_split("calibration", router.num_calibration_tasks)
    return inputs.played(
        "thresholds",
        play,
        tasks,
        len(router.seeds),
        times=plays,
        shared=True,
        alone=inputs.alone("calibration", router.num_calibration_tasks),
        at_most="a search may end early, and asks the LLM as the threshold says",
        remedy="evaluation.methods, evaluation.budgets, router.num_calibration_tasks",
    )


def _main(inputs: PlanInputs, played: _Plays) -> Part:
    methods = [name for name in inputs.config.evaluation.played if name != ORACLE]
    each = [_method(inputs, name) for name in methods]
    return Part(
        name="main table",
        shared=True,
        total=sum((play.times(played.episodes) for play in each), Workload()),
        blocks=played.blocks,
        alone=played.alone,
        unit=max(each, key=lambda play: play.steps, default=Workload()),
        at_most="the LLM's share is what thresholds are placed for" if set(methods) & set(ROUTERS) else "",
        remedy="evaluation.methods, evaluation.conditions, evaluation.seeds, evaluation.num_tasks",
    )


def _method(inputs: PlanInputs, name: str) -> Workload:
    """Return the work of one episode by a method other than the oracle."""
    if name in ROUTERS:
        return routed(inputs, inputs.config.router.budget, verifier=True if name == "verifier_router" else None)
    if name == "llm_only":
        return inputs.with_tokens(episode(inputs.teacher_steps, llm=1), inputs.teacher_steps)
    steps, samples = inputs.student_steps, inputs.config.inference.num_candidates
    if name == "best_of_k" and samples > 1:
        return inputs.with_tokens(episode(steps, samples=samples, verifier=samples), steps)
    assert name in METHODS
    return inputs.with_tokens(episode(steps, student=1), steps)


def _oracle(inputs: PlanInputs, played: _Plays) -> Part:
    steps, facts = inputs.student_steps, inputs.facts
    tried = branches(steps, each=2 * facts.pace.differing, copies=facts.copies, student=1)
    play = inputs.with_tokens(episode(steps, student=1, llm=1) + tried, steps)
    return Part(
        name="oracle_router",
        total=play.times(played.episodes),
        unit=play,
        blocks=played.blocks,
        alone=played.alone,
        at_most="the LLM's branch is played only where the small policy's fails",
        remedy="evaluation.oracle_tasks",
    )


def _frontier(inputs: PlanInputs, played: _Plays, methods: int) -> Part:
    each = [routed(inputs, budget) for budget in inputs.config.evaluation.operating_points.values()]
    return Part(
        name="frontier",
        shared=True,
        total=sum((play.times(played.episodes * methods) for play in each), Workload()),
        blocks=played.blocks,
        alone=played.alone,
        unit=max(each, key=lambda play: play.llm, default=Workload()),
        at_most="the LLM's share is what thresholds are placed for",
        remedy="evaluation.frontier_tasks, evaluation.budgets",
    )


def _gains(inputs: PlanInputs, played: _Plays) -> Part:
    """Return the part of gains, along episodes of r2v if its router learnt by rounds, else of the small policy."""
    routed_pair = OURS in inputs.config.evaluation.played and inputs.config.router.routed_rounds > 0
    reads = EvaluateSettings.of(inputs.config).asks_verifier
    play = (routed_features_of_episode if routed_pair else features_of_episode)(inputs, verifier=reads)
    return Part(
        name="gains",
        total=play.times(played.episodes),
        unit=play,
        blocks=played.blocks,
        alone=played.alone,
        at_most="after a branch the LLM is asked as r2v's threshold says" if routed_pair else "",
        remedy="evaluation.gains_tasks",
    )
