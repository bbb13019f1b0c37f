"""Teacher states: a policy's actions at the states of a recorded teacher, without any world.

    cell = agreement_cell(chosen, slm, extractor, tools, max_steps=30, identity=...)
    rows = [row for rows in measured(cell, player) for row in rows]

Where the gain of an LLM step cannot be executed, its label is imputed from a record: does the greedy policy act as the
teacher did in the teacher's state? Such a label knows no outcome: another action may be as good, an equal one may fail,
and the states are the teacher's, not the policy's own. A policy agrees more on the tasks that it was cloned from, so
only other tasks are used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from r2v.data.episode import COPIED, IMPORTED, Episode
from r2v.data.interchange.conversation import of_episode
from r2v.envs.base import Task
from r2v.policy.prompt_encoder import build_messages
from r2v.randomness import uniform
from r2v.rollout.actors import GreedyActor, StepView
from r2v.rollout.gates import FeatureExtractor
from r2v.rollout.session import EpisodeSpec
from r2v.rollout.work_queue import Cell
from r2v.router.labels import FeatureRow, differs_from_record
from r2v.wire.message import ToolSpec

_SPLITS = ("train", "calibration")


def left_out_tasks(tasks: Iterable[str], share: float) -> frozenset[str]:
    """Return the tasks that cloning leaves out: this share by a keyed draw, at least one for the router and one for its
    calibration, and never all."""
    drawn = _drawn(tasks)
    return frozenset(drawn[: min(max(2, math.ceil(share * len(drawn))), max(len(drawn) - 1, 0))])


def split_of(tasks: Iterable[str], num_train: int, num_calibration: int) -> dict[str, str]:
    """Return task -> train or calibration, at most so many of each; of fewer tasks, both in proportion and at least one
    for calibration."""
    drawn = _drawn(tasks)
    count = min(len(drawn), num_train + num_calibration)
    held = min(max(1, count * num_calibration // (num_train + num_calibration)), count)
    return {task: _SPLITS[index < held] for index, task in enumerate(drawn[:count])}


def _drawn(tasks: Iterable[str]) -> list[str]:
    """Return the tasks in the order of a keyed draw, which does not depend on their number."""
    return sorted(set(tasks), key=lambda task: (uniform("teacher states", task), task))


def views_of(
    episode: Episode, tools: tuple[ToolSpec, ...], max_steps: int, *, native: bool = False
) -> Iterator[tuple[StepView, str]]:
    """Yield (view, recorded action) of every step that the teacher decided. native: with the log's own messages in
    place of R2V's rendering of them."""
    about = episode.metadata
    talk = of_episode(episode) if native else None
    logged = () if talk is None else tuple(message.plain for message in talk.messages)
    places = () if talk is None else talk.places
    observations = tuple(step.observation.raw_text for step in episode.steps)
    actions = tuple(step.action.raw_text for step in episode.steps)
    for index, step in enumerate(episode.steps):
        if step.label is not None and step.label.label_source == COPIED:  # repeated from an earlier log
            continue
        seen, done = observations[: index + 1], actions[:index]
        yield (
            StepView(
                task_id=about.task_id,
                seed=about.seed,
                step=index,
                max_steps=max_steps,
                goal=about.goal,
                observations=seen,
                actions=done,
                messages=logged[: places[index]]
                if native
                else build_messages(about.goal, seen, done, about.extra.get("system")),
                tools=tools,
            ),
            actions[index],
        )


def agreement_cell(
    episodes: Mapping[str, Episode],
    splits: Mapping[str, str],
    slm: GreedyActor,
    extractor: FeatureExtractor,
    tools: Sequence[ToolSpec],
    *,
    max_steps: int,
    native: bool = False,
    fits: Callable[[StepView], bool] = lambda view: True,
    what: str = "",
    identity: Mapping[str, Any] | None = None,
) -> Cell:
    """Return the cell of rows with imputed labels, from episodes by id and the split of each task. Steps that do not
    fit into the policy's context have no row. `identity` names the record."""
    states = {
        f"{name}#{view.step}": (episode, view, recorded)
        for name, episode in sorted(episodes.items())
        for view, recorded in views_of(episode, tuple(tools), max_steps, native=native)
        if fits(view)
    }

    async def ask(spec: EpisodeSpec) -> list[FeatureRow]:
        episode, view, recorded = states[spec.task.task_id]
        act = await slm.act(view)
        assert act.proposal is not None
        row = FeatureRow(
            state_id=spec.task.task_id,
            episode_id=episode.episode_id,
            task_id=view.task_id,
            split=spec.split or "",
            step_idx=view.step,
            actor="teacher",
            features=await extractor.features(view, act.proposal),
            disagrees=differs_from_record("\n".join(part.text for part in (act, *act.rest)), recorded, tools),
            slm_episode_success=None,
            condition=episode.condition,
            perturbation_seed=episode.perturbation_seed,
            cost_slm=act.bill.cost,
            cost_llm=usd_of_step(episode, view.step),
            proposal=act.text,
        )
        return [row]

    specs = [
        EpisodeSpec(
            task=Task(task_id=name, goal=view.goal),
            seed=view.seed,
            condition=episode.condition,
            perturbation_seed=episode.perturbation_seed,
            split=splits[view.task_id],
        )
        for name, (episode, view, _) in states.items()
    ]
    way = {"play": "imputed step", "native": native, **(identity or {})}
    return Cell(what=what, identity=way, specs=specs, play=ask, kinds=(FeatureRow,))


def usd_of_step(episode: Episode, step: int) -> float:
    """Return the USD of a step according to the log; an equal share where only the total is logged."""
    usd_by_step = episode.extra.get(IMPORTED, {}).get("usd") or ()
    usd = usd_by_step[step] if step < len(usd_by_step) else None
    return episode.total_cost / len(episode.steps) if usd is None else float(usd)
