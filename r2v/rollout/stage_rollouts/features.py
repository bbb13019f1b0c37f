"""Feature rollouts: what a router learns from. An actor plays, and each of its steps is played on both ways: with the
small policy's action and with the LLM's, after either of which the same actor goes on.

The actor is the small policy alone, or the pair routed so far: then the outcomes say what asking here is worth to that
pair. A step acted by the LLM is a row too, for its proposal is the small policy's and both actions are executed.
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
"""Part of the key that played rows are kept under. A new version plays them again."""
ROUND = "round"
"""Key of `Episode.extra` with the round of policy iteration that an episode was played in."""


def rows_of(records: Iterable[Sequence[Any]]) -> Iterator[FeatureRow]:
    """The rows of feature roll-outs, without their episodes."""
    for played in records:
        yield from (record for record in played if isinstance(record, FeatureRow))


@dataclass(frozen=True, kw_only=True)
class FeatureRollout:
    """Who plays, who is asked, and what is read off each step."""

    world: RolloutWorld
    slm: GreedyActor
    llm: GreedyActor
    extractor: FeatureExtractor
    waves: Waves
    routed: Actor | None = None
    """The pair that plays; None: the small policy does."""
    threshold: float | None = None
    """Of `routed`."""
    number: int = 0
    """Of the round that `routed` plays in; 0: the small policy plays."""
    keep_branches: bool = False
    """Keep the branches, and the episode that they leave, behind the rows (`branch_record`)."""

    def cell(self, specs: Sequence[EpisodeSpec], *, what: str = "", identity: Mapping[str, Any] | None = None) -> Cell:
        """Rows for a router: features are taken before every action, and where the LLM would act otherwise than the
        small policy both are executed. Equal actions gain nothing and are not played twice. A step at which the LLM may
        not be asked any more has no row."""
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
        """The row of a step, None where the world broke in its branch, and the branch, None of actions that are
        alike."""
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


def other_act(act: Act, asked: Act, small: ActionSource) -> Act:
    """The act that a step's branch begins with: the LLM's, billed beside the small policy's; where the LLM acted, the
    small policy's proposal, billed without the LLM."""
    if act.source != asked.source:
        return replace(asked, bill=act.bill + asked.bill)
    assert act.proposal is not None
    return Act(text=act.proposal.text, source=small, bill=act.bill - asked.bill)


def gain_row(
    spec: EpisodeSpec,
    episode: Episode,
    view: StepView,
    act: Act,
    asked: Act,
    branch: Episode | None,
    *,
    features: dict[str, float],
    number: int,
    threshold: float | None,
) -> FeatureRow:
    """The row of a step: what both actions came to, of the `episode` that was played and of the `branch` of the other
    action; None: the actions are alike, and so are their outcomes."""
    assert act.proposal is not None
    is_asked = act.source == asked.source
    other = episode if branch is None else branch
    slm, llm = (other, episode) if is_asked else (episode, other)
    alike = asked.bill.cached_cost if branch is None else 0.0  # what the LLM's same action costs besides
    return FeatureRow(
        state_id=f"{episode.episode_id}#{view.step}" + (f"@{number}" if number else ""),
        episode_id=episode.episode_id,
        task_id=view.task_id,
        split=spec.split or "",
        step_idx=view.step,
        actor=act.source,
        proposal=act.proposal.text,
        llm_action=asked.text,
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
    """USD as billed of a row: the step that was played, the LLM's `proposal` where that was not, and what the branch,
    which begins with the recorded steps and the other action, spent behind this step."""
    tail = 0.0
    if branch is not None:
        before = sum(act.bill.cached_cost for act in step.before.acts)
        tail = branch.billed_cost - before - other.bill.cached_cost
    return round(step.act.bill.cached_cost + proposal + tail, 10)
