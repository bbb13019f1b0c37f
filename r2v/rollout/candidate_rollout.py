"""Candidate rollouts: what each of K sampled actions is worth, found by playing it on from its state."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from r2v.config import CandidatesConfig
from r2v.llm.types import ScoreRequest
from r2v.llm.waves import Waves
from r2v.policy.candidates import CandidateAction, CandidateState
from r2v.rollout.actors import GreedyActor, Scorer
from r2v.rollout.cells import Cell, CellPlayer, MemoryPlayer, measured
from r2v.rollout.counterfactual import (
    SnapshotRollout,
    StepSnapshot,
    canaries_seen,
    play_counterfactual,
    rollout_with_snapshots,
)
from r2v.rollout.play_lines import BrokenPlay
from r2v.rollout.session import EpisodeSpec, RolloutWorld
from r2v.router.features import masked

FoldOf = Callable[[str], int]
"""task_id -> which cross-fitted verifier may score it."""


def play_candidates(
    specs: Sequence[EpisodeSpec],
    world: RolloutWorld,
    slm: GreedyActor,
    teacher: GreedyActor | None,
    scorers: Sequence[Scorer],
    folds: FoldOf,
    sampling: CandidatesConfig,
    waves: Waves,
    *,
    what: str = "",
    identity: Mapping[str, Any] | None = None,
    player: CellPlayer | None = None,
    faults: list[str] | None = None,
) -> list[CandidateState]:
    """The states of `candidate_cell`, played by `player` (None: in memory). Why an episode has none is added to
    `faults`."""
    cell = candidate_cell(specs, world, slm, teacher, scorers, folds, sampling, waves, what=what, identity=identity)
    return [state for states in measured(cell, player or MemoryPlayer(waves), faults) for state in states]


def candidate_cell(
    specs: Sequence[EpisodeSpec],
    world: RolloutWorld,
    slm: GreedyActor,
    teacher: GreedyActor | None,
    scorers: Sequence[Scorer],
    folds: FoldOf,
    sampling: CandidatesConfig,
    waves: Waves,
    *,
    what: str = "",
    identity: Mapping[str, Any] | None = None,
) -> Cell:
    """K samples of the small policy at every state of its own roll-outs, and the teacher's action there where one
    is given; each distinct one is scored by a verifier that has not seen the task (`scorers[folds(task_id)]`) and
    valued by letting the small policy play it on."""

    async def sample_all(spec: EpisodeSpec) -> list[CandidateState | BrokenPlay]:
        played = await rollout_with_snapshots(world.start(spec), slm, waves)
        if played.episode.env_fault is not None:
            return [BrokenPlay(reason=played.episode.env_fault)]
        return [await sample(spec, played, step) for step in played.snapshots]

    async def sample(spec: EpisodeSpec, played: SnapshotRollout, step: StepSnapshot) -> CandidateState:
        view = step.view
        reply = await slm.model.ask(
            view, num_samples=sampling.num_samples, temperature=sampling.temperature, top_p=sampling.top_p
        )
        forms = [masked(drawn.text, view.tools) for drawn in reply.samples]
        shown = None if teacher is None else (await teacher.act(view)).text
        texts = {form: drawn.text for form, drawn in zip(reversed(forms), reversed(reply.samples), strict=True)}
        if shown is not None:
            texts.setdefault(masked(shown, view.tools), shown)
        measured: dict[str, dict[str, Any]] = {}
        for form, text in texts.items():
            judged = await scorers[folds(view.task_id)](ScoreRequest(messages=view.messages, action=text))
            worth = await value(played, step, text, len(texts))
            measured[form] = {
                "canonical": form,
                "score": judged.score,
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

    async def value(played: SnapshotRollout, step: StepSnapshot, text: str, distinct: int) -> float | None:
        """What playing the action on comes to; None where a state's samples agree, for there is nothing to tell
        apart, and where the world broke on the way."""
        if distinct == 1:
            return None
        if text == step.act.text:
            return float(played.episode.success)
        branch = await play_counterfactual(step.before, replace(step.act, text=text), slm, waves)
        return None if branch.env_fault is not None else float(branch.success)

    return Cell(
        what=what,
        identity={"play": "candidates", **(identity or {})},
        specs=specs,
        play=sample_all,
        kinds=(CandidateState,),
    )


def _candidate_state(
    spec: EpisodeSpec,
    episode_id: str,
    step: StepSnapshot,
    actions: Sequence[CandidateAction],
    teacher: CandidateAction | None,
) -> CandidateState:
    context = "\n".join(message.content for message in step.view.messages)
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
