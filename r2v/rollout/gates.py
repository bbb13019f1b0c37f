"""Routers at work: the features of a step, and the score that decides whether the LLM is asked.

Every gate reads the features that `FeatureExtractor` computes; gates differ in the score made of them
(`r2v.router.baselines`) and in the model calls needed for it. Drawing samples and asking the verifier go through the
wave engine like any other call, and are on the bill of the step.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from r2v.config import InferenceConfig
from r2v.llm.answer_cache import AnswerCache, digest_of
from r2v.llm.types import Reply, Sample
from r2v.rollout.actors import PricedModel, PricedVerifier, StepView
from r2v.rollout.bill import StepBill
from r2v.router.baselines import ALL, Instruments, Score
from r2v.router.case_support import CaseIndex, Nearest
from r2v.router.features import Signals, extract


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """A step's features, name -> value, and the bill of measuring them."""

    features: dict[str, float]
    bill: StepBill


@dataclass(frozen=True)
class FeatureExtractor:
    """Computes a step's features. Groups whose instrument is missing (no verifier, no samples) are left out."""

    inference: InferenceConfig
    verifier: PricedVerifier | None = None
    slm: PricedModel | None = None
    """Draws further samples where the features need them."""
    num_samples: int = 0
    untrusted: str = ""
    """The benchmark's regular expression of lines that third parties wrote (`Capabilities.untrusted`)."""
    cases: CaseIndex | None = None
    """The teacher's recorded steps, where the features need them."""
    remembered: AnswerCache = field(default_factory=AnswerCache)

    async def features(self, view: StepView, proposal: Reply) -> dict[str, float]:
        """Return name -> value, all known before the action is executed."""
        return (await self.measure(view, proposal)).features

    async def measure(self, view: StepView, proposal: Reply, instruments: Instruments = ALL) -> MeasuredStep:
        """Return the features that these instruments give, and their bill."""
        # keyed by all that a measurement depends on: methods that share a history measure it once
        drawn = view.key("samples") if self.num_samples and instruments.samples else ()
        state = (view.messages, view.llm_calls, view.llm_steps[-1:])
        key = digest_of(*state, drawn, instruments.verifier, instruments.previous)
        measured: MeasuredStep | None = self.remembered.get(key)
        if measured is None:
            measured = self.remembered[key] = await self._measure(view, proposal, instruments)
        return measured

    async def _measure(self, view: StepView, proposal: Reply, instruments: Instruments) -> MeasuredStep:
        samples: tuple[Sample, ...] = ()
        bill = StepBill()
        if self.num_samples and self.slm is not None and instruments.samples:
            reply = await self.slm.ask(
                view,
                num_samples=self.num_samples,
                temperature=self.inference.temperature,
                top_p=self.inference.top_p,
            )
            samples, bill = reply.samples, self.slm.bill(view, reply)
        scores: tuple[float, ...] = ()
        previous: float | None = None
        if self.verifier is not None and instruments.verifier:
            texts = [proposal.text, *(sample.text for sample in samples)]
            by_text, read = await self.verifier.scores(view, texts)
            scores, bill = tuple(by_text[text] for text in texts), bill + read
            if view.actions and instruments.previous:
                previous, read = await self._previous(self.verifier, view)
                bill += read
        features = extract(
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
                untrusted=self.untrusted,
                nearest=self._nearest(view),
            )
        )
        return MeasuredStep(features=features, bill=bill)

    def _nearest(self, view: StepView) -> Nearest:
        if self.cases is None:
            return ()
        return self.cases.nearest(view.goal, view.observations[-1], view.actions, view.tools, view.task_id)

    async def _previous(self, verifier: PricedVerifier, view: StepView) -> tuple[float, StepBill]:
        """Return the verifier's score of the action played one step before, and its bill: empty where the small policy
        chose that action, which was scored and billed at its own step."""
        before = replace(view, step=view.step - 1, messages=view.messages_at(view.step - 1))
        scores, bill = await verifier.scores(before, view.actions[-1:])
        return scores[view.actions[-1]], bill if view.step - 1 in view.llm_steps else StepBill()


@dataclass(frozen=True)
class ScoreGate:
    """A gate that computes its score from the step's features."""

    score: Score
    extractor: FeatureExtractor
    instruments: Instruments = ALL

    async def __call__(self, view: StepView, proposal: Reply) -> tuple[float, StepBill]:
        measured = await self.extractor.measure(view, proposal, self.instruments)
        return self.score(measured.features, view.seed, view.task_id, view.step), measured.bill
