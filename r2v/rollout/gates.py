"""Routers at work: what is measured at a step, and the score that decides whether the LLM is asked.

Every gate sees the same features, computed once per step by `Sensors`; it differs only in the score it makes
of them (`r2v.router.baselines`). A feature costs what it costs: drawing samples and asking the verifier are
model calls behind the wave engine like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from r2v.config import InferenceConfig
from r2v.llm.types import Reply, Sample, ScoreRequest
from r2v.rollout.actors import Scorer, Side, Turn
from r2v.router.baselines import Score
from r2v.router.features import Signals, extract


@dataclass(frozen=True)
class Sensors:
    """Computes a step's features. Groups whose instrument is missing (no verifier, no samples) are left out."""

    inference: InferenceConfig
    verifier: Scorer | None = None
    slm: Side | None = None
    """Given where the features need further samples of the small policy."""
    num_samples: int = 0
    remembered: dict[object, dict[str, float]] = field(default_factory=dict)

    async def features(self, turn: Turn, proposal: Reply) -> dict[str, float]:
        """Name -> value, all known before the action is executed."""
        key = (turn.messages, turn.llm_calls, turn.key("samples") if self.num_samples else ())
        if key not in self.remembered:
            self.remembered[key] = await self._measure(turn, proposal)
        return self.remembered[key]

    async def _measure(self, turn: Turn, proposal: Reply) -> dict[str, float]:
        samples: tuple[Sample, ...] = ()
        if self.num_samples and self.slm is not None:
            samples = (
                await self.slm.ask(
                    turn,
                    num_samples=self.num_samples,
                    temperature=self.inference.temperature,
                    top_p=self.inference.top_p,
                )
            ).samples
        texts = [proposal.text, *(sample.text for sample in samples)]
        scores, previous = await self._scores(turn, texts)
        return extract(
            Signals(
                goal=turn.goal,
                observations=turn.observations,
                actions=turn.actions,
                tools=turn.tools,
                proposal=proposal,
                max_steps=turn.max_steps,
                llm_calls=turn.llm_calls,
                max_llm_calls=self.inference.max_llm_calls,
                samples=samples,
                scores=scores,
                previous_score=previous,
            )
        )

    async def _scores(self, turn: Turn, texts: list[str]) -> tuple[tuple[float, ...], float | None]:
        """The verifier's opinion of the texts, and of the action played one step before."""
        if self.verifier is None:
            return (), None
        scores = [await self.verifier(ScoreRequest(messages=turn.messages, action=text)) for text in texts]
        if not turn.actions:
            return tuple(scores), None
        before = ScoreRequest(messages=turn.messages[:-2], action=turn.actions[-1])
        return tuple(scores), await self.verifier(before)


@dataclass(frozen=True)
class ScoreGate:
    """A gate that makes its score of the step's features."""

    score: Score
    sensors: Sensors

    async def __call__(self, turn: Turn, proposal: Reply) -> float:
        features: Mapping[str, float] = await self.sensors.features(turn, proposal)
        return self.score(features, turn.seed, turn.task_id, turn.step)
