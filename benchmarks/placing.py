"""Placement: score and threshold of each method at each operating point, found by playing calibration tasks.

r2v's own score is placed at shares of LLM steps, and every other score where it costs what r2v's costs there, in USD as
billed. A family (`benchmarks/routing_tree.py`) then plays, at each point, the member that the same tasks prefer; the
results of all members are kept with the choice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.routing_tree import Family, Method, Rival, RoutingTree, Walked, own_score, scores_of, walk
from r2v.config.methods import OURS
from r2v.router.escalation import SCORE_ONLY
from r2v.router.thresholds import Choice, OperatingPoint, RateSearch, Spending, paired, search_together
from r2v.storage.files import write_json

SHARES = (0.05, 0.1, 0.2, 0.3, 0.45)
"""r2v's operating points, shares of LLM steps on calibration tasks; the third is the main one."""
POINTS = tuple(f"{share:g}" for share in SHARES)
MAIN_POINT = POINTS[2]
MOST_PLAYED = 10
"""Rounds of a search: enough to tell neighbours among some hundred scores apart."""
Placement = Mapping[str, Any]
"""A method at an operating point: the `score` that it plays, its `tau`, and `llm_call_rate`, `success` and `cost` of
calibration tasks there; of a family also its `members`, the same of each, with the `difference` of its success from
that of the family's own score and the `standard_error` of it, paired by task."""
Placements = dict[str, list[Placement]]
"""Method to its placements, one for each of `SHARES`."""


def walks(trees: Sequence[RoutingTree], plans: Sequence[tuple[Rival, float]]) -> list[list[Walked]]:
    """Return the walks over all trees, for each plan."""

    async def along(tree: RoutingTree) -> list[Walked]:
        return [await walk(tree, rival, tau) for rival, tau in plans]

    by_tree = trees[0].waves.run(partial(along, tree) for tree in trees)
    return [list(column) for column in zip(*by_tree, strict=True)]


def point_of(played: Sequence[Walked]) -> OperatingPoint:
    """Return shares and cost of the episodes of one threshold."""
    return OperatingPoint(
        llm_call_rate=sum(sum(episode.asked) for episode in played) / sum(len(episode.asked) for episode in played),
        cost=fmean(episode.cost for episode in played),
        success=fmean(episode.success for episode in played),
    )


def placed(
    trees: Sequence[RoutingTree], scores: Sequence[Rival], targets: Sequence[float], by: Spending
) -> dict[str, list[Choice]]:
    """Return each score's threshold for each target, found by playing calibration tasks."""
    named = {rival.name: rival for rival in scores}
    searches: dict[tuple[str, str], RateSearch] = {}
    for name, played in zip(named, walks(trees, [(rival, SCORE_ONLY) for rival in scores]), strict=True):
        seen, alone = [score for episode in played for score in episode.scores], point_of(played)
        searches |= {(name, str(at)): RateSearch(seen, target, by=by, alone=alone) for at, target in enumerate(targets)}

    def play(plans: Sequence[tuple[str, float]]) -> list[OperatingPoint]:
        return [point_of(played) for played in walks(trees, [(named[name], tau) for name, tau in plans])]

    choices = search_together(searches, play, MOST_PLAYED)
    return {name: [choices[name, str(at)] for at in range(len(targets))] for name in named}


def placements(trees: Sequence[RoutingTree], methods: Mapping[str, Method], path: Path) -> Placements:
    """Return the placements of all methods, read from `path`; missing ones are found and written there."""
    stored: Placements = json.loads(path.read_text()) if path.exists() else {}
    reference, scores = own_score(methods[OURS]), scores_of(methods.values())
    if reference.name not in stored:
        stored |= _plain(placed(trees, [reference], SHARES, "llm_call_rate"))
    if missing := [score for name, score in scores.items() if name not in stored]:
        dollars = [placement["cost"] for placement in stored[reference.name]]
        stored |= _plain(placed(trees, missing, dollars, "cost"))
    for name, method in methods.items():
        if isinstance(method, Family) and name not in stored:
            stored[name] = [_chosen(trees, method, at, stored) for at in range(len(SHARES))]
    write_json(path, stored)
    return {name: stored[name] for name in methods}


def _plain(choices: Mapping[str, list[Choice]]) -> Placements:
    return {
        name: [{"score": name, "tau": choice.tau, **asdict(choice.outcome)} for choice in chosen]
        for name, chosen in choices.items()
    }


def _chosen(trees: Sequence[RoutingTree], family: Family, at: int, stored: Placements) -> Placement:
    """Return the member that a family plays at an operating point."""
    own = own_score(family).name
    plans = [(member, stored[member.name][at]["tau"]) for member in family.members]
    solved = {member.name: _solved(played) for member, played in zip(family.members, walks(trees, plans), strict=True)}
    members = {}
    for name, successes in solved.items():
        difference, error = paired(solved[own], successes)
        figures = {"difference": round(difference, 6), "standard_error": round(error, 6)}
        members[name] = {**stored[name][at], **figures}
    name = family.prefer(members, len(solved[own]))
    return {**stored[name][at], "members": members}


def _solved(played: Sequence[Walked]) -> dict[str, float]:
    """Return the share of solved episodes by task."""
    by_task: dict[str, list[bool]] = {}
    for episode in played:
        by_task.setdefault(episode.task_id, []).append(episode.success)
    return {task: fmean(successes) for task, successes in by_task.items()}


def most_success(members: Mapping[str, Placement], num_tasks: int) -> str:
    """Return the member that succeeds most; ties go to the cheaper, then to the earlier."""
    return max(members, key=lambda name: (members[name]["success"], -members[name]["cost"]))
