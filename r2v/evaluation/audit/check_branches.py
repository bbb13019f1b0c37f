"""Branches: the continuations of the oracle and of gains, replayed, and the rows and decisions derived from them again.

A file of branches holds, for each episode, the episode itself with hashed observations, then its branches in the order
of their steps. A branch leaves its episode at one step with the other model's action. Rows of gains and the oracle's
decisions are made of episode and branches by the functions that made them first (`gain_row`, `failed`, `saves`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from r2v.config.methods import METHODS, ORACLE, OURS
from r2v.data.episode import Episode, Step, with_hashed_observations
from r2v.errors import R2VError
from r2v.evaluation.audit.check_episode import EpisodeAudit, KnownStates
from r2v.evaluation.setup import RouterScores
from r2v.rollout.actors import Act, StepView
from r2v.rollout.counterfactual import BRANCHED_AT, failed, saves
from r2v.rollout.recorded_actors import LLM, SLM, NoRecord
from r2v.rollout.session import EpisodeSpec
from r2v.rollout.stage_rollouts.features import ROUND, gain_row, other_act
from r2v.router.baselines import score_function
from r2v.router.labels import FeatureRow, disagrees

Played = tuple[Episode, Sequence[StepView]]
"""An episode that replays, and the view before each of its actions."""


@dataclass(frozen=True, kw_only=True)
class BranchesAudit:
    """The branches of episodes of one method."""

    one: EpisodeAudit
    name: str
    """Their name in findings."""
    method: str
    """The method whose episodes are branched, and which plays on."""
    score: str
    """The method whose score decides in them."""
    threshold: float | None
    number: int = 0
    """Of the round that rows of gains are of."""

    def problems(
        self, spec: EpisodeSpec, played: Played, group: Sequence[Episode], states: KnownStates
    ) -> Iterator[str]:
        """Replay the branches of one episode; yield the problems of their places."""
        if not group:
            return
        episode, _ = played
        first, *branches = group
        extra = {} if self.method == ORACLE else {ROUND: self.number}
        if first is not episode and first != replace(with_hashed_observations(episode), extra=extra):
            yield f"{first.episode_id}: the branches leave another episode than that of {self.method}"
            return
        for branch in branches:
            at = branch.extra.get(BRANCHED_AT)
            if not isinstance(at, int) or not 0 <= at < len(episode.steps) or branch.steps[:at] != first.steps[:at]:
                yield f"{branch.episode_id}: a branch at step {at} does not begin like its episode"
                continue
            self.one.check(
                f"{self.name} branch at step {at}",
                self.score,
                self.threshold,
                replace(spec, method=self.method, extra={BRANCHED_AT: at}),
                branch,
                states,
                kept=with_hashed_observations,
                actor=self._actor(episode, at),
            )
            if self.method == ORACLE and any(step.action_source != SLM for step in branch.steps[at + 1 :]):
                yield f"{branch.episode_id}: in a branch at step {at} the small policy does not play on"

    def _actor(self, episode: Episode, at: int) -> Callable[[StepView, Step], Act]:
        def actor(view: StepView, step: Step) -> Act:
            if view.step != at or self.method == ORACLE:
                return self.one.actors.act(view, self.score, step, self.threshold)
            own = self._act(view, episode.steps[at])
            by_llm = step if step.action_source == LLM else episode.steps[at]
            return other_act(own, self.one.actors.llm_act(view, by_llm), SLM)

        return actor

    def _act(self, view: StepView, step: Step) -> Act:
        return self.one.actors.act(view, self.score, step, self.threshold)

    def oracle_problems(self, played: Played, group: Sequence[Episode]) -> Iterator[str]:
        """Yield each step at which the oracle does not act as its branches tell."""
        episode, views = played
        tried = _by_step(group[1:])
        for view, step in zip(views, episode.steps, strict=True):
            branches, where = tried.get(view.step, []), f"{episode.episode_id} step {view.step}"
            llm_reply = self.one.actors.expert_reply(view)
            if not branches:
                if step.action_source == LLM or (llm_reply is not None and llm_reply.text != step.action.raw_text):
                    yield f"{where}: the two models act otherwise, and no branch was tried"
                continue
            own, *rest = branches
            texts = [branch.steps[view.step].action.raw_text for branch in branches if len(branch.steps) > view.step]
            if len(texts) != len(branches) or len(rest) != failed(own) or len(set(texts)) != len(texts):
                yield f"{where}: {len(branches)} branches were tried, which is not what the first came to"
            elif llm_reply is not None and rest and texts[1] != llm_reply.text:
                yield f"{where}: the second branch does not begin with the LLM's action"
            elif llm_reply is not None and texts[0] == llm_reply.text:
                yield f"{where}: both models act alike, and a branch was tried"
            elif (step.action_source == LLM) != (asks := failed(own) and saves(rest[0])):
                yield f"{where}: {'the small policy' if asks else 'the LLM'} acts, which its branches do not tell"
            elif step.action.raw_text != texts[asks]:
                yield f"{where}: acts otherwise than in the branch that it follows"

    def rows(
        self, spec: EpisodeSpec, played: Played, group: Sequence[Episode], recorded: Sequence[FeatureRow]
    ) -> Iterator[str]:
        """Yield the problems of the rows of one episode. Features rest on a model's word; so do the action and the bill
        of an LLM that is not at hand, where it acts like the small policy."""
        episode, views = played
        branches = {step: some[0] for step, some in _by_step(group[1:]).items()}
        by_step = {row.step_idx: row for row in recorded}
        derived = dict[int, FeatureRow]()
        for view in views if episode.env_fault is None else ():
            if self.method == OURS and view.llm_calls >= self.one.actors.inference.max_llm_calls:
                continue
            row, branch = by_step.get(view.step), branches.pop(view.step, None)
            where, step = f"{episode.episode_id} step {view.step}", episode.steps[view.step]
            try:
                act = self._act(view, step)
            except NoRecord:
                continue  # named where the episode is replayed
            by_llm = step
            if act.source == SLM and branch is not None and len(branch.steps) > view.step:
                by_llm = branch.steps[view.step]
            elif act.source == SLM and row is not None and row.llm_action is not None:
                by_llm = replace(step, action=replace(step.action, raw_text=row.llm_action), said=None)
            llm_act = self.one.actors.llm_act(view, by_llm)
            proposal = act.text if act.proposal is None else act.proposal.text
            if disagrees(proposal, llm_act.text, view.tools) != (branch is not None):
                same = "alike, and a" if branch else "otherwise, and no"
                yield f"{where}: the two models act {same} branch was played"
            elif branch is None or branch.env_fault is None:
                derived_row = gain_row(
                    spec,
                    episode,
                    view,
                    act,
                    llm_act,
                    branch,
                    features={} if row is None else row.features,
                    number=self.number,
                    threshold=self.threshold,
                )
                if row is not None and branch is None and self.one.actors.expert is None:
                    other = "cost_llm" if act.source == SLM else "cost_slm"
                    derived_row = replace(derived_row, **{other: getattr(row, other)})
                derived[view.step] = derived_row
        for at in branches:
            yield f"{episode.episode_id}: a branch at step {at} belongs to no step that is branched"
        if derived.keys() != by_step.keys() or len(by_step) != len(recorded):
            yield f"{episode.episode_id}: {len(recorded)} rows, {len(derived)} follow from its steps and branches"
        for at in derived.keys() & by_step.keys():
            for field, recorded_value in vars(by_step[at]).items():
                made_of = getattr(derived[at], field)
                if recorded_value != made_of or type(recorded_value) is not type(made_of):
                    yield f"{by_step[at].state_id}: {field} is {recorded_value}, by its episodes {made_of}"


def _by_step(branches: Sequence[Episode]) -> dict[int, list[Episode]]:
    by_step: dict[int, list[Episode]] = {}
    for branch in branches:
        at = branch.extra.get(BRANCHED_AT)
        if isinstance(at, int):
            by_step.setdefault(at, []).append(branch)
    return by_step


def score_problems(
    condition: str,
    routed: Sequence[str],
    rows: Sequence[FeatureRow],
    seeds: Mapping[str, int],
    recorded: Mapping[str, RouterScores],
) -> Iterator[str]:
    """Yield how setup.json's scores of a condition differ from its rows; those of a trained router are a model's."""
    for method in routed:
        scores = recorded.get(method)
        if scores is None or len(scores.p) != len(rows):
            yield f"{method} on {condition}: {len(rows)} states were scored, setup.json holds another number"
            continue
        p: Sequence[float] = scores.p
        try:
            if not METHODS[method].trained_router:
                score = score_function(method, {})
                p = [score(row.features, seeds[row.episode_id], row.task_id, row.step_idx) for row in rows]
        except (R2VError, KeyError, ArithmeticError) as error:
            yield f"{method} on {condition}: {error}"
            continue
        derived = RouterScores.of(method, condition, rows, p)
        if derived != scores or not all(0 <= value <= 1 for value in scores.p):
            yield f"{method} on {condition}: p or y is not what the executed rows give"
