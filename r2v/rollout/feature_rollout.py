"""Feature rollouts: what a router learns from, the small policy's episodes and what an LLM step would have gained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from r2v.data.episode import Episode
from r2v.llm.waves import Waves
from r2v.rollout.actors import GreedyActor
from r2v.rollout.cells import Cell
from r2v.rollout.counterfactual import StepSnapshot, play_counterfactual, rollout_with_snapshots
from r2v.rollout.gates import FeatureExtractor
from r2v.rollout.play_lines import BrokenPlay
from r2v.rollout.session import EpisodeSpec, RolloutWorld
from r2v.router.labels import FeatureRow, disagrees


@dataclass(frozen=True, kw_only=True)
class FeatureRollout:
    """Who plays, who is asked, and what is read off each step."""

    world: RolloutWorld
    slm: GreedyActor
    llm: GreedyActor
    extractor: FeatureExtractor
    cost_ratio: float
    """What an LLM step costs in steps of the small policy."""
    waves: Waves

    def cell(self, specs: Sequence[EpisodeSpec], *, what: str = "", identity: Mapping[str, Any] | None = None) -> Cell:
        """Rows for a router: the small policy plays, features are taken before every action, and where the LLM
        would act otherwise its branch is executed. Equal actions gain nothing and are not played twice."""
        return Cell(
            what=what,
            identity={"play": "features", **(identity or {})},
            specs=specs,
            play=self._roll_out,
            kinds=(FeatureRow,),
        )

    async def _roll_out(self, spec: EpisodeSpec) -> list[FeatureRow | BrokenPlay]:
        played = await rollout_with_snapshots(self.world.start(spec), self.slm, self.waves)
        if played.episode.env_fault is not None:
            return [BrokenPlay(reason=played.episode.env_fault)]
        rows = [await self._row(spec, played.episode, step) for step in played.snapshots]
        return [measured for measured in rows if measured is not None]

    async def _row(self, spec: EpisodeSpec, episode: Episode, step: StepSnapshot) -> FeatureRow | None:
        assert step.act.proposal is not None
        asked = await self.llm.act(step.view)
        differs, q_llm = disagrees(step.act.text, asked.text, step.view.tools), episode.success
        if differs:
            branch = await play_counterfactual(step.before, asked, self.slm, self.waves)
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
            features=await self.extractor.features(step.view, step.act.proposal),
            q_slm=float(episode.success),
            q_llm=float(q_llm),
            n_rollouts=1,
            disagrees=differs,
            slm_episode_success=episode.success,
            condition=spec.condition,
            perturbation_seed=episode.perturbation_seed,
            cost_slm=1.0,
            cost_llm=self.cost_ratio,
        )
