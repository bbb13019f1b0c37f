"""Routers at work: what is measured at a step, and the score that decides whether the LLM is asked.

Every gate sees the same features, computed once per step by `FeatureExtractor`; it differs only in the score it makes
of them (`r2v.router.baselines`). A feature costs what it costs: drawing samples and asking the verifier are
model calls behind the wave engine like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from r2v.config import InferenceConfig
from r2v.llm.memo import Memo, digest_of
from r2v.llm.types import Reply, Sample, ScoreRequest
from r2v.rollout.actors import PricedModel, Scorer, StepView
from r2v.router.baselines import Score
from r2v.router.features import Signals, extract


@dataclass(frozen=True)
class FeatureExtractor:
    """Computes a step's features. Groups whose instrument is missing (no verifier, no samples) are left out."""

    inference: InferenceConfig
    verifier: Scorer | None = None
    slm: PricedModel | None = None
    """Given where the features need further samples of the small policy."""
    num_samples: int = 0
    remembered: Memo = field(default_factory=Memo)

    async def features(self, view: StepView, proposal: Reply) -> dict[str, float]:
        """Name -> value, all known before the action is executed."""
        key = digest_of(view.messages, view.llm_calls, view.key("samples") if self.num_samples else ())
        found: dict[str, float] | None = self.remembered.get(key)
        if found is None:
            found = self.remembered[key] = await self._measure(view, proposal)
        return found

    async def _measure(self, view: StepView, proposal: Reply) -> dict[str, float]:
        samples: tuple[Sample, ...] = ()
        if self.num_samples and self.slm is not None:
            samples = (
                await self.slm.ask(
                    view,
                    num_samples=self.num_samples,
                    temperature=self.inference.temperature,
                    top_p=self.inference.top_p,
                )
            ).samples
        texts = [proposal.text, *(sample.text for sample in samples)]
        scores, previous = await self._scores(view, texts)
        return extract(
            Signals(
                goal=view.goal,
                observations=view.observations,
                actions=view.actions,
                tools=view.tools,
                proposal=proposal,
                max_steps=view.max_steps,
                llm_calls=view.llm_calls,
                max_llm_calls=self.inference.max_llm_calls,
                samples=samples,
                scores=scores,
                previous_score=previous,
            )
        )

    async def _scores(self, view: StepView, texts: list[str]) -> tuple[tuple[float, ...], float | None]:
        """The verifier's opinion of the texts, and of the action played one step before."""
        if self.verifier is None:
            return (), None
        scores = [await self.verifier(ScoreRequest(messages=view.messages, action=text)) for text in texts]
        if not view.actions:
            return tuple(scores), None
        before = ScoreRequest(messages=view.messages[:-2], action=view.actions[-1])
        return tuple(scores), await self.verifier(before)


@dataclass(frozen=True)
class ScoreGate:
    """A gate that makes its score of the step's features."""

    score: Score
    extractor: FeatureExtractor

    async def __call__(self, view: StepView, proposal: Reply) -> float:
        features: Mapping[str, float] = await self.extractor.features(view, proposal)
        return self.score(features, view.seed, view.task_id, view.step)
