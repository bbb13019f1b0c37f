"""Routers at work: what is measured at a step, and the score that decides whether the LLM is asked.

Every gate reads the features of the step that `FeatureExtractor` computes; it differs only in the score it makes of
them (`r2v.router.baselines`), and in what it has to ask for that. Drawing samples and asking the verifier are model
calls behind the wave engine like any other, and are on the bill of the step.
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
    """A step's features, name -> value, and what asking for them cost."""

    features: dict[str, float]
    bill: StepBill


@dataclass(frozen=True)
class FeatureExtractor:
    """Computes a step's features. Groups whose instrument is missing (no verifier, no samples) are left out."""

    inference: InferenceConfig
    verifier: PricedVerifier | None = None
    slm: PricedModel | None = None
    """Given where the features need further samples of the small policy."""
    num_samples: int = 0
    untrusted: str = ""
    """The benchmark's mark of lines that outsiders wrote."""
    cases: CaseIndex | None = None
    """The teacher's recorded steps, where the features need them."""
    remembered: AnswerCache = field(default_factory=AnswerCache)

    async def features(self, view: StepView, proposal: Reply) -> dict[str, float]:
        """Name -> value, all known before the action is executed."""
        return (await self.measure(view, proposal)).features

    async def measure(self, view: StepView, proposal: Reply, asked: Instruments = ALL) -> MeasuredStep:
        """The features that these instruments give, and their bill."""
        drawn = view.key("samples") if self.num_samples and asked.samples else ()
        key = digest_of(view.messages, view.llm_calls, view.llm_steps[-1:], drawn, asked.verifier, asked.previous)
        measured: MeasuredStep | None = self.remembered.get(key)
        if measured is None:
            measured = self.remembered[key] = await self._measure(view, proposal, asked)
        return measured

    async def _measure(self, view: StepView, proposal: Reply, asked: Instruments) -> MeasuredStep:
        samples: tuple[Sample, ...] = ()
        bill = StepBill()
        if self.num_samples and self.slm is not None and asked.samples:
            reply = await self.slm.ask(
                view,
                num_samples=self.num_samples,
                temperature=self.inference.temperature,
                top_p=self.inference.top_p,
            )
            samples, bill = reply.samples, self.slm.bill(view, reply)
        scores: tuple[float, ...] = ()
        previous: float | None = None
        if self.verifier is not None and asked.verifier:
            texts = [proposal.text, *(sample.text for sample in samples)]
            by_text, read = await self.verifier.scores(view, texts)
            scores, bill = tuple(by_text[text] for text in texts), bill + read
            if view.actions and asked.previous:
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
        """The verifier's opinion of the action played one step before. It is on the bill where the LLM chose that
        action; one of the small policy has been scored at its own step."""
        before = replace(view, step=view.step - 1, messages=view.messages_at(view.step - 1))
        scores, bill = await verifier.scores(before, view.actions[-1:])
        return scores[view.actions[-1]], bill if view.step - 1 in view.llm_steps else StepBill()


@dataclass(frozen=True)
class ScoreGate:
    """A gate that makes its score of the step's features."""

    score: Score
    extractor: FeatureExtractor
    asked: Instruments = ALL

    async def __call__(self, view: StepView, proposal: Reply) -> tuple[float, StepBill]:
        measured = await self.extractor.measure(view, proposal, self.asked)
        return self.score(measured.features, view.seed, view.task_id, view.step), measured.bill
