"""Feature rollouts: what a router learns from, the small policy's episodes and what an LLM step would have gained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from r2v.data.episode import Episode
from r2v.llm.waves import Waves
from r2v.rollout.actors import GreedyActor
from r2v.rollout.cells import Cell, CellPlayer, MemoryPlayer, measured
from r2v.rollout.counterfactual import StepSnapshot, play_counterfactual, rollout_with_snapshots
from r2v.rollout.gates import FeatureExtractor
from r2v.rollout.play_lines import BrokenPlay
from r2v.rollout.session import EpisodeSpec, RolloutWorld
from r2v.router.labels import FeatureRow, disagrees


def roll_out_features(
    specs: Sequence[EpisodeSpec],
    world: RolloutWorld,
    slm: GreedyActor,
    llm: GreedyActor,
    extractor: FeatureExtractor,
    cost_ratio: float,
    waves: Waves,
    *,
    what: str = "",
    identity: Mapping[str, Any] | None = None,
    player: CellPlayer | None = None,
    faults: list[str] | None = None,
) -> list[FeatureRow]:
    """The rows of `feature_cell`, played by `player` (None: in memory). Why an episode has none goes to `faults`."""
    cell = feature_cell(specs, world, slm, llm, extractor, cost_ratio, waves, what=what, identity=identity)
    return [row for rows in measured(cell, player or MemoryPlayer(waves), faults) for row in rows]


def feature_cell(
    specs: Sequence[EpisodeSpec],
    world: RolloutWorld,
    slm: GreedyActor,
    llm: GreedyActor,
    extractor: FeatureExtractor,
    cost_ratio: float,
    waves: Waves,
    *,
    what: str = "",
    identity: Mapping[str, Any] | None = None,
) -> Cell:
    """Rows for a router: the small policy plays, features are taken before every action, and where the LLM
    would act otherwise its branch is executed. Equal actions gain nothing and are not played twice."""

    async def roll_out(spec: EpisodeSpec) -> list[FeatureRow | BrokenPlay]:
        played = await rollout_with_snapshots(world.start(spec), slm, waves)
        if played.episode.env_fault is not None:
            return [BrokenPlay(reason=played.episode.env_fault)]
        rows = [await row(spec, played.episode, step) for step in played.snapshots]
        return [measured for measured in rows if measured is not None]

    async def row(spec: EpisodeSpec, episode: Episode, step: StepSnapshot) -> FeatureRow | None:
        assert step.act.proposal is not None
        asked = await llm.act(step.view)
        differs, q_llm = disagrees(step.act.text, asked.text, step.view.tools), episode.success
        if differs:
            branch = await play_counterfactual(step.before, asked, slm, waves)
            if branch.env_fault is not None:
                return None
            q_llm = branch.success
        return FeatureRow(
            state_id=f"{episode.episode_id}#{step.view.step}",
            episode_id=episode.episode_id,
            task_id=step.view.task_id,
            split=spec.split or "",
            step_idx=step.view.step,
            actor=step.act.source,
            features=await extractor.features(step.view, step.act.proposal),
            q_slm=float(episode.success),
            q_llm=float(q_llm),
            n_rollouts=1,
            disagrees=differs,
            slm_episode_success=episode.success,
            condition=spec.condition,
            perturbation_seed=spec.perturbation_seed,
            cost_slm=1.0,
            cost_llm=cost_ratio,
        )

    return Cell(
        what=what, identity={"play": "features", **(identity or {})}, specs=specs, play=roll_out, kinds=(FeatureRow,)
    )
