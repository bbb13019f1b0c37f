"""Candidate rollouts: K actions sampled at a state, each valued by playing on after it.

The continuing policy decides which values differ. With a small policy that fails after any action all values are 0;
with a teacher that recovers from a mistake, a value is the cost of the mistake, a step or the task.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from r2v.config import CandidatesConfig
from r2v.data.episode import Episode
from r2v.llm.types import ScoreRequest
from r2v.llm.waves import Waves
from r2v.policy.candidates import CandidateAction, CandidateState
from r2v.rollout.actors import GreedyActor, Scorer
from r2v.rollout.counterfactual import (
    SnapshotRollout,
    StepSnapshot,
    canaries_seen,
    play_counterfactual,
    rollout_with_snapshots,
)
from r2v.rollout.episode_cache import BrokenPlay
from r2v.rollout.session import EpisodeSpec, RolloutWorld
from r2v.rollout.work_queue import Cell
from r2v.router.features import masked
from r2v.verifier.labels import detour_value

FoldOf = Callable[[str], int]
"""task_id -> index of the cross-fitted verifier that may score it."""


@dataclass(frozen=True, kw_only=True)
class CandidateRollout:
    """The world and the models of candidate rollouts."""

    world: RolloutWorld
    slm: GreedyActor
    """Plays the episodes, and is sampled at each of their states."""
    teacher: GreedyActor | None
    """Its action at each state is a candidate too; None: samples only."""
    continuation: GreedyActor
    """Plays on after each action."""
    scorers: Sequence[Scorer]
    """Cross-fitted verifiers; empty where the verifier was left out."""
    folds: FoldOf
    """Index of the scorer that was not trained on a task: `scorers[folds(task_id)]`."""
    sampling: CandidatesConfig
    waves: Waves

    def cell(self, specs: Sequence[EpisodeSpec], *, what: str = "", identity: Mapping[str, Any] | None = None) -> Cell:
        """Return the cell of candidates: K samples of the small policy at every state of its own roll-outs, and the
        teacher's action where one is given. Each distinct action is scored by a verifier that was not trained on the
        task, and valued by playing on after it."""
        return Cell(
            what=what,
            identity={"play": "candidates", **(identity or {})},
            specs=specs,
            play=self._sample_all,
            kinds=(CandidateState,),
        )

    async def _sample_all(self, spec: EpisodeSpec) -> list[CandidateState | BrokenPlay]:
        played = await rollout_with_snapshots(self.world.start(spec), self.slm, self.waves)
        if played.episode.env_fault is not None:
            return [BrokenPlay(reason=played.episode.env_fault)]
        return [await self._sample(spec, played, step) for step in played.snapshots]

    async def _sample(self, spec: EpisodeSpec, played: SnapshotRollout, step: StepSnapshot) -> CandidateState:
        view = step.view
        reply = await self.slm.model.ask(
            view,
            num_samples=self.sampling.num_samples,
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
        )
        forms = [masked(drawn.text, view.tools) for drawn in reply.samples]
        shown = None if self.teacher is None else (await self.teacher.act(view)).text
        # reversed, so that a form's text is its first sample's
        texts = {form: drawn.text for form, drawn in zip(reversed(forms), reversed(reply.samples), strict=True)}
        if shown is not None:
            texts.setdefault(masked(shown, view.tools), shown)
        values = await self._values(played, step, list(texts.values()))
        measured: dict[str, dict[str, Any]] = {}
        for (form, text), worth in zip(texts.items(), values, strict=True):
            request = ScoreRequest(messages=view.messages, action=text)
            judged = await self.scorers[self.folds(view.task_id)](request) if self.scorers else None
            measured[form] = {
                "canonical": form,
                "score": None if judged is None else judged.score,
                "value": worth,
                "n_rollouts": int(worth is not None),
            }
        actions = [
            CandidateAction(
                k=k,
                text=drawn.text,
                logprob_sum=round(sum(drawn.logprobs), 6),
                n_tokens=len(drawn.tokens),
                finish_reason=drawn.finish_reason,
                **measured[form],
            )
            for k, (form, drawn) in enumerate(zip(forms, reply.samples, strict=True))
        ]
        if shown is None:
            return _candidate_state(spec, played.episode.episode_id, step, actions, None)
        expert = CandidateAction(k=-1, text=shown, **measured[masked(shown, view.tools)])
        return _candidate_state(spec, played.episode.episode_id, step, actions, expert)

    async def _values(self, played: SnapshotRollout, step: StepSnapshot, texts: Sequence[str]) -> list[float | None]:
        """Return the value of each action, in [0, 1]: that of the episode played on after it, discounted for each step
        more than the shortest success took (`detour_value`). None where a state's actions agree, since no value would
        differ, and where the world broke."""
        if len(texts) == 1:
            return [None]
        branches = [await self._branch(played, step, text) for text in texts]
        fewest = min((len(branch.steps) for branch in branches if branch.success), default=0)
        return [
            None
            if branch.env_fault is not None
            else round(detour_value(branch.success, len(branch.steps) - fewest, self.sampling.discount), 6)
            for branch in branches
        ]

    async def _branch(self, played: SnapshotRollout, step: StepSnapshot, text: str) -> Episode:
        """Return the episode with this action; the roll-out itself where it took the action and would play on alike."""
        if text == step.act.text and self.continuation is self.slm:
            return played.episode
        return await play_counterfactual(step.before, replace(step.act, text=text), self.continuation, self.waves)


def _candidate_state(
    spec: EpisodeSpec,
    episode_id: str,
    step: StepSnapshot,
    actions: Sequence[CandidateAction],
    teacher: CandidateAction | None,
) -> CandidateState:
    context = "\n".join(message.text for message in step.view.messages)
    return CandidateState(
        state_id=f"{episode_id}#{step.view.step}",
        task_id=step.view.task_id,
        split=spec.split or "",
        step_idx=step.view.step,
        context_sha256=hashlib.sha256(context.encode()).hexdigest(),
        prompt=step.view.messages,
        candidates=tuple(actions),
        teacher=teacher,
        canaries=canaries_seen(step),
        condition=spec.condition,
    )
