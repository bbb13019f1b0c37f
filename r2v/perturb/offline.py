"""Offline perturbation: perturbed twins of stored episodes, without further teacher calls.

A stored episode is a small world that shows its observations in turn as long as its own actions are taken. Replayed in
it under the live wrapper, with failed calls repeated, an episode becomes exactly what the live world would have given.
Two constructions are valid:

    annotate   observations are edited and actions stay (in the page's names, if these changed): for categories that
               hide nothing; a page may be cut only if every later action is still supported
    insert     a failed call and its retry are inserted: only if a failed call leaves the world unchanged, and only for
               transient failures

Replacing an observation while keeping its action is not valid, since it teaches the policy to invent. Such categories
need the teacher to play again in the perturbed world. `replace` does it nevertheless, for the ablation that measures
the harm; no other configuration makes such episodes, and cloning refuses them by default.

An argument is *supported* at step t when it occurs in the goal, in an observation up to t, or in an earlier action.
Editing must not remove support, else the label teaches the policy to invent identifiers. Arguments that were never
supported (free wording, a constant of the tool's schema) are exempt.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import replace
from enum import StrEnum
from typing import Any, Literal

from r2v.data.action import parse_action
from r2v.data.episode import Episode, Observation, Step
from r2v.envs.base import Info, Task
from r2v.perturb.category import PerturbationKind, call_failed, perturbation_type
from r2v.perturb.live import PerturbedEnv
from r2v.perturb.renaming import renamed_line
from r2v.perturb.schedule import Schedule
from r2v.wire.message import ToolSpec


class Rejected(StrEnum):
    """Reason why an episode has no twin of a construction."""

    UNTOUCHED = "untouched"
    """No perturbation hit it."""
    TOO_LONG = "too_long"
    """It would exceed the step limit."""
    LOST_SUPPORT = "lost_support"
    """A later action would lose its support."""
    NOT_IDEMPOTENT = "not_idempotent"
    """A failed call may have changed the world."""
    FAILED = "failed"
    """The teacher did not succeed in the perturbed world."""
    DUPLICATE = "duplicate"
    """Another twin of the same parent has the same text."""


class Report:
    """Running counts of twins, rejections and hits."""

    def __init__(self) -> None:
        self.read: Counter[str] = Counter()
        self.made: Counter[str] = Counter()
        self._rejected: Counter[tuple[str, str]] = Counter()
        self._hits: Counter[tuple[str, int]] = Counter()

    def add(self, episode: Episode) -> Episode:
        """Count an episode and return it."""
        self.made[episode.construction] += 1
        for step in episode.steps:
            self._hits.update((perturbation.category, step.step_idx) for perturbation in step.perturbations)
        return episode

    def reject(self, construction: str, why: Rejected) -> None:
        """Count a rejected twin."""
        self._rejected[construction, why.value] += 1

    def accepted(self, construction: str, twin: Episode | Rejected) -> Iterator[Episode]:
        """Count and yield a twin, or count its rejection."""
        if isinstance(twin, Rejected):
            self.reject(construction, twin)
        else:
            yield self.add(twin)

    def as_json(self) -> dict[str, Any]:
        """Return the counts as JSON values in a fixed order."""
        rejected: dict[str, dict[str, int]] = defaultdict(dict)
        for (construction, why), count in sorted(self._rejected.items()):
            rejected[construction][why] = count
        hits: dict[str, dict[str, int]] = defaultdict(dict)
        for (name, step), count in sorted(self._hits.items()):
            hits[name][str(step)] = count
        return {
            "read": dict(sorted(self.read.items())),
            "made": dict(sorted(self.made.items())),
            "rejected": rejected,
            "hits": {name: sum(steps.values()) for name, steps in hits.items()},
            "hits_by_step": hits,
        }


def lost_support(clean: Episode, edited: Episode) -> list[tuple[int, str]]:
    """Return (step, argument) of every argument supported in `clean` but not in `edited`, its twin with the same
    actions (in the twin's names, if they changed). Planted lines support nothing."""
    lost: list[tuple[int, str]] = []
    clean_texts = [clean.metadata.goal]
    edited_texts = [edited.metadata.goal]
    for before, after in zip(clean.steps, edited.steps, strict=True):
        own = set(before.observation.raw_text.split("\n"))
        for perturbation in after.perturbations:
            own |= {renamed_line(line, perturbation.params) for line in own}
        clean_texts.append(before.observation.raw_text)
        edited_texts.extend(line for line in after.observation.raw_text.split("\n") if line in own)
        lost.extend(
            (before.step_idx, value)
            for value, renamed in dict(
                zip(_values(before.action.arguments), _values(after.action.arguments), strict=True)
            ).items()
            if _occurs(value, clean_texts) and not _occurs(renamed, edited_texts)
        )
        clean_texts.append(before.action.raw_text)
        edited_texts.append(after.action.raw_text)
    return lost


def _values(arguments: Any) -> Iterator[str]:
    """Yield the plain values among an action's arguments as text."""
    if isinstance(arguments, dict):
        for value in arguments.values():
            yield from _values(value)
    elif isinstance(arguments, list):
        for value in arguments:
            yield from _values(value)
    elif arguments is not None and not isinstance(arguments, bool) and str(arguments):
        yield str(arguments)


def _occurs(value: str, texts: list[str]) -> bool:
    """True if a text contains the value as a whole word or number."""
    whole = re.compile(rf"(?<!\w){re.escape(value)}(?!\w)")
    return any(whole.search(text) for text in texts)


class Recording:
    """A stored episode as an `Environment`: each recorded action leads to the next recorded observation."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        self._at = 0

    def reset(self, *, seed: int, task: Task) -> tuple[str, Info]:
        """Return the first recorded observation."""
        self._at = 0
        return self._episode.steps[0].observation.raw_text, Info()

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Return the recorded result of the action; the last one ends the episode with the recorded outcome and an
        empty observation. Raises ValueError for any other action."""
        steps, at = self._episode.steps, self._at
        if action != steps[at].action.raw_text:
            raise ValueError(f"{self._episode.episode_id}: step {at} recorded another action than {action}")
        self._at = at + 1
        if self._at < len(steps):
            return steps[self._at].observation.raw_text, steps[at].reward, False, False, Info()
        done = Info(success=self._episode.success, partial_score=self._episode.partial_score)
        return "", steps[at].reward, True, False, done

    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """Return no tools, since none are recorded."""
        return ()


OfflineConstruction = Literal["annotate", "insert", "replace"]
_KINDS: dict[OfflineConstruction, tuple[PerturbationKind, ...]] = {
    "annotate": ("goal", "edit"),
    "insert": ("tool_call",),
    "replace": ("goal", "replace", "value", "edit"),
}
"""Categories that a construction can write into a stored episode; all others are left out of its twins."""


def twin_of(
    episode: Episode, schedule: Schedule, construction: OfflineConstruction, *, max_steps: int, preserving: bool = False
) -> Episode | Rejected:
    """Return the twin of a clean episode by the schedule's categories that the construction can write, optionally only
    those that preserve the page. An inserted failure is transient, as no retry of a permanent one goes through."""
    own = schedule.only(*_KINDS[construction], preserving=preserving, transient=construction == "insert")
    twin = _replay(episode, own, construction, max_steps)
    if construction == "annotate" and isinstance(twin, Episode) and lost_support(episode, twin):
        return Rejected.LOST_SUPPORT
    return twin


def twins(
    episode: Episode,
    schedule: Schedule,
    constructions: Collection[str],
    *,
    max_steps: int,
    idempotent: bool,
    report: Report,
) -> Iterator[Episode]:
    """Yield the offline twins of a clean episode; `report` counts the rejected ones. `idempotent`: True if a failed
    call leaves the world unchanged. An episode that must not be cut is annotated by the preserving categories."""
    if "annotate" in constructions:
        twin = twin_of(episode, schedule, "annotate", max_steps=max_steps)
        if twin is Rejected.LOST_SUPPORT:
            report.reject("annotate", twin)
            twin = twin_of(episode, schedule, "annotate", max_steps=max_steps, preserving=True)
        yield from report.accepted("annotate", twin)
    if "insert" in constructions and not idempotent:
        report.reject("insert", Rejected.NOT_IDEMPOTENT)
    elif "insert" in constructions:
        yield from report.accepted("insert", twin_of(episode, schedule, "insert", max_steps=max_steps))
    if "replace" in constructions:
        yield from report.accepted("replace", twin_of(episode, schedule, "replace", max_steps=max_steps))


def _replay(
    episode: Episode, schedule: Schedule, construction: OfflineConstruction, max_steps: int
) -> Episode | Rejected:
    """Play the recording under the schedule, repeating each call until it succeeds."""
    meta, env = episode.metadata, PerturbedEnv(Recording(episode), schedule)
    shown, info = env.reset(seed=meta.seed, task=Task(task_id=meta.task_id, goal=meta.goal))
    steps: list[Step] = []
    seconds = info.sim_seconds
    for recorded in episode.steps:
        failed = True
        while failed:
            if len(steps) == max_steps:
                return Rejected.TOO_LONG
            step = _step(recorded, len(steps), shown, info, schedule.seed)
            spelled = env.action_for_agent(recorded.action.raw_text)
            if spelled != recorded.action.raw_text:
                step = replace(step, action=replace(parse_action(spelled), plan_tag=recorded.action.plan_tag))
            shown, reward, _, _, info = env.step(spelled)
            failed, seconds = call_failed(info.perturbations), seconds + info.sim_seconds
            steps.append(replace(step, reward=reward, label=None if failed else recorded.label))
    applied = [perturbation for step in steps for perturbation in step.perturbations]
    if not applied:
        return Rejected.UNTOUCHED
    return replace(
        episode,
        steps=tuple(steps),
        metadata=replace(meta, goal=env.goal),
        construction=construction,
        episode_id=f"{episode.episode_id}/p{schedule.seed}/{construction}",
        parent_episode_id=episode.episode_id,
        condition="noisy",
        perturbation_seed=schedule.seed,
        perturbation_type=perturbation_type(applied),
        sim_time_seconds=round(episode.sim_time_seconds + seconds, 6),
    )


def _step(recorded: Step, index: int, shown: str, info: Info, seed: int) -> Step:
    """Return the recorded step with the shown page. A page that differs has no recorded snapshot."""
    same = shown == recorded.observation.raw_text
    seen = (
        recorded.observation
        if same
        else Observation(raw_text=shown, url=recorded.observation.url, metadata=recorded.observation.metadata)
    )
    clean = shown if info.clean_observation is None else info.clean_observation
    return replace(
        recorded,
        step_idx=index,
        observation=seen,
        perturbation_seed=seed,
        perturbations=info.perturbations,
        clean_observation_sha256=hashlib.sha256(clean.encode()).hexdigest(),
    )
