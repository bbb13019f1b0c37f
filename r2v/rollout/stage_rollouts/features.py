"""Feature rollouts: training rows of a router. Each step of an episode is executed both ways, with the small policy's
action and with the LLM's, and the same actor plays on after either.

The actor is the small policy alone, or the pair routed so far, whose outcomes give the gain of asking here to that
pair. A step acted by the LLM is a row too: its proposal is the small policy's, and both actions are executed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from r2v.data.episode import ActionSource, Episode
from r2v.data.injections import obeyed_injection
from r2v.llm.waves import Waves
from r2v.rollout.actors import Act, Actor, GreedyActor, StepView
from r2v.rollout.counterfactual import StepSnapshot, branch_record, play_counterfactual, rollout_with_snapshots
from r2v.rollout.gates import FeatureExtractor
from r2v.rollout.session import EpisodeSpec, RolloutWorld
from r2v.rollout.work_queue import Cell
from r2v.router.labels import FeatureRow, disagrees

ROWS_VERSION = 4
"""Part of the cache key of rows; a new version plays them again."""
ROUND = "round"
"""Key of `Episode.extra`: the round of policy iteration in which an episode was played."""


def rows_of(records: Iterable[Sequence[Any]]) -> Iterator[FeatureRow]:
    """Yield the rows of feature roll-outs, without their episodes."""
    for played in records:
        yield from (record for record in played if isinstance(record, FeatureRow))


@dataclass(frozen=True, kw_only=True)
class FeatureRollout:
    """The world, the models and the measured features of feature rollouts."""

    world: RolloutWorld
    slm: GreedyActor
    llm: GreedyActor
    extractor: FeatureExtractor
    waves: Waves
    routed: Actor | None = None
    """The pair that plays; None: the small policy plays."""
    threshold: float | None = None
    """Threshold of `routed`."""
    number: int = 0
    """Number of the round that `routed` plays in; 0: the small policy plays."""
    keep_branches: bool = False
    """Record the branches after the rows (`branch_record`)."""

    def cell(self, specs: Sequence[EpisodeSpec], *, what: str = "", identity: Mapping[str, Any] | None = None) -> Cell:
        """Return the cell of a router's rows: features are measured before every action, and where the LLM's action
        differs from the small policy's both are executed. Equal actions gain nothing and are not played twice. A step
        at which the LLM may not be asked any more has no row."""
        return Cell(
            what=what,
            identity={
                "play": "features",
                "rows": ROWS_VERSION,
                "round": self.number,
                **({"branches": "kept"} if self.keep_branches else {}),
                **(identity or {}),
            },
            specs=specs,
            play=self._roll_out,
            kinds=(Episode, FeatureRow),
        )

    @property
    def _actor(self) -> Actor:
        return self.slm if self.routed is None else self.routed

    async def _roll_out(self, spec: EpisodeSpec) -> list[Episode | FeatureRow]:
        played = await rollout_with_snapshots(self.world.start(spec), self._actor, self.waves)
        episode = replace(played.episode, extra={**played.episode.extra, ROUND: self.number})
        if episode.env_fault is not None:
            return [episode]
        measured = [(step, *await self._row(spec, episode, step)) for step in played.snapshots if self._may_ask(step)]
        rows = [row for _, row, _ in measured if row is not None]
        if not self.keep_branches:
            return [episode, *rows]
        branches = [branch_record(branch, step.view.step) for step, _, branch in measured if branch is not None]
        return [episode, *rows, *branches]

    def _may_ask(self, step: StepSnapshot) -> bool:
        most = self.world.inference.max_llm_calls
        return self.routed is None or step.view.llm_calls < most

    async def _row(
        self, spec: EpisodeSpec, episode: Episode, step: StepSnapshot
    ) -> tuple[FeatureRow | None, Episode | None]:
        """Return the row of a step, None where the world broke in its branch, and the branch, None for equal
        actions."""
        assert step.act.proposal is not None
        llm_act = await self.llm.act(step.view)
        is_asked = step.act.source == llm_act.source
        other = other_act(step.act, llm_act, self.slm.source)
        branch = None
        if disagrees(step.act.proposal.text, llm_act.text, step.view.tools):
            branch = await play_counterfactual(step.before, other, self._actor, self.waves)
            if branch.env_fault is not None:
                return None, branch
        row = gain_row(
            spec,
            episode,
            step.view,
            step.act,
            llm_act,
            branch,
            features=await self.extractor.features(step.view, step.act.proposal),
            number=self.number,
            threshold=self.threshold,
        )
        return replace(row, spent=_spent(step, other, branch, 0.0 if is_asked else llm_act.bill.cached_cost)), branch


def other_act(act: Act, llm_act: Act, small: ActionSource) -> Act:
    """Return the other model's act at a step, with which the step's branch begins: where the small policy acted, the
    LLM's, billed together with the proposal; where the LLM acted, the small policy's proposal as an act of source
    `small`, billed without the LLM."""
    if act.source != llm_act.source:
        return replace(llm_act, bill=act.bill + llm_act.bill)
    assert act.proposal is not None
    return Act(text=act.proposal.text, source=small, bill=act.bill - llm_act.bill)


def gain_row(
    spec: EpisodeSpec,
    episode: Episode,
    view: StepView,
    act: Act,
    llm_act: Act,
    branch: Episode | None,
    *,
    features: dict[str, float],
    number: int,
    threshold: float | None,
) -> FeatureRow:
    """Return the row of a step: the outcomes of both actions, from the `episode` that was played and the `branch` of
    the other action. branch=None: the actions are equal, and so are their outcomes."""
    assert act.proposal is not None
    is_asked = act.source == llm_act.source
    other = episode if branch is None else branch
    slm, llm = (other, episode) if is_asked else (episode, other)
    alike = llm_act.bill.cached_cost if branch is None else 0.0  # an equal action of the LLM is billed too
    return FeatureRow(
        state_id=f"{episode.episode_id}#{view.step}" + (f"@{number}" if number else ""),
        episode_id=episode.episode_id,
        task_id=view.task_id,
        split=spec.split or "",
        step_idx=view.step,
        actor=act.source,
        proposal=act.proposal.text,
        llm_action=llm_act.text,
        features=features,
        q_slm=float(slm.success),
        q_llm=float(llm.success),
        disagrees=branch is not None,
        slm_episode_success=episode.success if threshold is None else None,
        condition=spec.condition,
        perturbation_seed=episode.perturbation_seed,
        cost_slm=round(slm.billed_cost - (alike if is_asked else 0.0), 10),
        cost_llm=round(llm.billed_cost + (0.0 if is_asked else alike), 10),
        obeyed_slm=float(obeyed_injection(slm.steps)),
        obeyed_llm=float(obeyed_injection(llm.steps)),
        round=number,
        threshold=threshold,
    )


def _spent(step: StepSnapshot, other: Act, branch: Episode | None, proposal: float) -> float:
    """Return the USD, as billed, of making a row: the played step, the LLM's `proposal` where that was not played, and
    the branch's steps after this one."""
    tail = 0.0
    if branch is not None:
        # a branch's bill includes the recorded steps and the other action
        before = sum(act.bill.cached_cost for act in step.before.acts)
        tail = branch.billed_cost - before - other.bill.cached_cost
    return round(step.act.bill.cached_cost + proposal + tail, 10)
