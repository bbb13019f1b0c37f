"""Corruption rollouts: the teacher's episodes with a plausible mistake in place of one step, executed to the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from r2v.data.episode import Episode
from r2v.llm.waves import Waves
from r2v.randomness import generator
from r2v.rollout.actors import GreedyActor
from r2v.rollout.counterfactual import SnapshotRollout, canaries_seen, play_counterfactual, rollout_with_snapshots
from r2v.rollout.session import EpisodeSpec, RolloutWorld
from r2v.rollout.work_queue import Cell
from r2v.verifier.corruptions import Corruption, corrupt
from r2v.verifier.labels import ExecutedAction, detour_value


@dataclass(frozen=True, kw_only=True)
class CorruptionRollout:
    """The world and the teacher of corruption rollouts, and how many mistakes are executed."""

    world: RolloutWorld
    teacher: GreedyActor
    waves: Waves
    per_episode: int
    """Most mistakes executed per episode."""
    discount: float
    """Factor on a success's value for each step of detour."""

    def cell(self, specs: Sequence[EpisodeSpec], *, what: str = "", identity: Mapping[str, Any] | None = None) -> Cell:
        """Return the cell of the teacher's own episodes and of plausible wrong actions in place of its steps, each
        played on by the teacher to the end: training data of a verifier before there is a policy."""
        return Cell(
            what=what,
            identity={
                "play": "corruptions",
                "per_episode": self.per_episode,
                "discount": self.discount,
                **(identity or {}),
            },
            specs=specs,
            play=self._demonstrate,
            kinds=(Episode, ExecutedAction),
        )

    async def _demonstrate(self, spec: EpisodeSpec) -> list[Episode | ExecutedAction]:
        played = await rollout_with_snapshots(self.world.start(spec), self.teacher, self.waves)
        if played.episode.env_fault is not None or not played.episode.success:
            return [played.episode]  # without a success there is no detour to measure
        variants = [(index, variant) for index in range(len(played.snapshots)) for variant in _wrong(played, index)]
        generator(*played.snapshots[0].view.key("corruptions")).shuffle(variants)
        chosen = variants[: self.per_episode]
        executed = [await self._execute(spec, played, index, variant) for index, variant in chosen]
        return [played.episode, *(action for action in executed if action is not None)]

    async def _execute(
        self, spec: EpisodeSpec, played: SnapshotRollout, index: int, variant: Corruption
    ) -> ExecutedAction | None:
        step = played.snapshots[index]
        twin = await play_counterfactual(step.before, replace(step.act, text=variant.text), self.teacher, self.waves)
        if twin.env_fault is not None:
            return None
        value = detour_value(twin.success, len(twin.steps) - len(played.episode.steps), self.discount)
        return ExecutedAction(
            state_id=f"{played.episode.episode_id}#{step.view.step}",
            task_id=spec.task.task_id,
            split=spec.split or "",
            messages=step.view.messages,
            action=variant.text,
            outcomes=(value,),
            kind=variant.kind,
            expert_outcomes=(1.0,),
            condition=spec.condition,
        )


def _wrong(played: SnapshotRollout, index: int) -> list[Corruption]:
    """Return plausible mistakes in place of a step."""
    step = played.snapshots[index]
    free = frozenset(name for tool in step.view.tools for name in tool.free_arguments)
    return corrupt(
        step.act.text,
        observations=step.view.observations,
        actions=step.view.actions,
        later=[later.act.text for later in played.snapshots[index + 1 :]],
        canaries=canaries_seen(step),
        free=free,
        key=step.view.key("corrupt"),
    )
