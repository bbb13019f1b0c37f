"""Recorded actors: the actors of an evaluation, over models that repeat an episode's recorded replies.

    actors = RecordedActors.of(benchmark, policy=..., teacher=..., inference=..., cost=..., features=...)
    act = actors.act(view, "r2v", step, threshold)        # raises NoRecord where the record lacks a reply or score

The decision to ask the LLM, the features measured for it, and the tokens and seconds of a step so come from the code
that played it (`r2v.rollout.actors`, `r2v.rollout.gates`), not from a second implementation. Tokens of bundled models
and of a benchmark's own expert are counted anew; all others are taken from the recorded step.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from r2v.config import CostConfig, InferenceConfig, PolicyConfig, TeacherConfig
from r2v.config.methods import ORACLE, ROUTERS, STRONG
from r2v.data.episode import ActionSource, Decision, Proposal, Step, Tokens
from r2v.envs.base import Benchmark, Demonstrated
from r2v.llm.providers.bodies import CONTINUES
from r2v.llm.providers.prices import Rate
from r2v.llm.providers.teacher import POLICY_KEYS, TEACHER_KEYS, EndpointKeys, teacher_rate
from r2v.llm.scripted import ScriptedBackend
from r2v.llm.types import ChatModel, Reply, Request, Sample, ScoreReply, ScoreRequest, Usage
from r2v.policy.prompt_encoder import Encoder
from r2v.rollout.actors import (
    SMALL_MODEL,
    Act,
    BestOfK,
    GreedyActor,
    PricedModel,
    PricedVerifier,
    Routed,
    StepView,
)
from r2v.rollout.bill import PromptCache
from r2v.rollout.gates import FeatureExtractor, ScoreGate
from r2v.rollout.model_factory import priced_endpoint, teacher_name, told_tools
from r2v.router.baselines import RECOMPUTED, instruments, score_function
from r2v.router.escalation import needs_score
from r2v.storage.weights import BUNDLED
from r2v.wire.exchange import TokenCounts

SLM: ActionSource = "slm"
LLM: ActionSource = "llm_fallback"
BEST_OF_K = "best_of_k"
_REMEMBERED = 1 << 18
"""Tokens of messages in the encoder's cache: episodes of one task and seed are audited together and share them."""
_LOWEST = -1e4
"""Least log-probability of a sample, in nats, that a record may claim."""

T = TypeVar("T")


class NoRecord(ValueError):
    """A step whose record lacks a reply or score that its method acts by, or holds an impossible one."""


@dataclass(frozen=True)
class _RecordedModel:
    """A chat model that gives one recorded reply."""

    recorded: Reply

    async def reply(self, request: Request) -> Reply:
        return self.recorded


@dataclass(frozen=True)
class _ExpertModel:
    """The benchmark's own expert as a chat model."""

    backend: ScriptedBackend

    async def reply(self, request: Request) -> Reply:
        return self.backend.answer([request])[0]


@dataclass(frozen=True)
class _RecordedVerifier:
    """A verifier that repeats recorded scores. Without a tokenizer its first call reports `uncounted`, the tokens of
    all its calls at the step, and later calls report none."""

    encode: Encoder | None
    uncounted: list[int]
    scores: dict[str, float] = field(default_factory=dict)

    async def __call__(self, request: ScoreRequest) -> ScoreReply:
        if self.encode is None:
            read = self.uncounted.pop() if self.uncounted else 0
        else:
            read = len(self.encode(request.messages)) + len(self.encode.action_ids(request.action))
        return ScoreReply(score=self.scores.get(request.action, 0.0), tokens_in=read)


@dataclass(frozen=True, kw_only=True)
class _Side:
    """One model of the pair over recorded replies: its price, prompt cache and context."""

    priced: PricedModel
    rate: Rate | None = None
    """Prices of a provider's model; None for others."""

    def replying(self, samples: tuple[Sample, ...], tokens_in: int, tokens_out: int) -> PricedModel:
        """Return the model with one recorded reply. Raises NoRecord for a negative token count."""
        if min(tokens_in, tokens_out) < 0:
            raise NoRecord(f"{tokens_in} tokens of a prompt and {tokens_out} of a reply are recorded")
        if self.rate is None:
            usd = (tokens_in * self.priced.price.input + tokens_out * self.priced.price.output) / 1e6
        else:  # each further sample is a request of its own
            usd = self.rate.listed(TokenCounts(fresh=tokens_in, output=tokens_out))
            usd += (len(samples) - 1) * self.rate.listed(TokenCounts(fresh=tokens_in))
        usage = Usage(tokens_in=tokens_in, tokens_out=tokens_out, cost_usd=usd)
        return replace(self.priced, model=_RecordedModel(Reply(samples=samples, usage=usage, model="")))


@dataclass(frozen=True, kw_only=True)
class RecordedActors:
    """The actors of an evaluation with these settings."""

    policy: PolicyConfig
    teacher: TeacherConfig
    inference: InferenceConfig
    cost: CostConfig
    slm: _Side
    llm: _Side
    features: Sequence[str]
    """Feature groups of the trained routers."""
    encode: Encoder | None
    """The small policy's tokenizer and template; None where the policy is not a bundled one."""
    expert: ScriptedBackend | None
    """The LLM, where it is the benchmark's own."""

    @classmethod
    def of(
        cls,
        benchmark: Benchmark,
        *,
        policy: PolicyConfig,
        teacher: TeacherConfig,
        inference: InferenceConfig,
        cost: CostConfig,
        features: Sequence[str],
    ) -> RecordedActors:
        """Return the actors for these settings; no file that a results folder names is loaded. Raises UsageError where
        the price of a provider's model is not known."""
        expert, encode, unasked = None, None, _RecordedModel(Reply(samples=(), usage=Usage(), model=""))
        slm = _Side(priced=PricedModel(unasked, cost.slm_price, SMALL_MODEL, inference.max_new_tokens))
        cache = PromptCache.of(cost.llm.input, cost)
        llm = _Side(priced=PricedModel(unasked, cost.llm_price, "llm", teacher.max_tokens, cache))
        if policy.is_api:
            slm = _of_endpoint(unasked, policy.as_endpoint(teacher), cost, SMALL_MODEL, POLICY_KEYS)
        if teacher.provider != "scripted":
            llm = _of_endpoint(unasked, teacher, cost, "llm", TEACHER_KEYS)
        if teacher.provider == "scripted" and isinstance(benchmark, Demonstrated):
            name = teacher_name(teacher, benchmark)
            expert = ScriptedBackend(benchmark.expert, name=name, price=cost.llm_price)
        if not policy.is_api and policy.model_name in BUNDLED:
            from transformers import PreTrainedTokenizerFast  # the same as AutoTokenizer for these files, without torch

            tokenizer = PreTrainedTokenizerFast.from_pretrained(BUNDLED[policy.model_name])
            reserve, tools = inference.max_new_tokens, told_tools(policy, benchmark)
            encode = Encoder.of(tokenizer, policy, reserve, tools, remember=_REMEMBERED)
        return cls(
            policy=policy,
            teacher=teacher,
            inference=inference,
            cost=cost,
            slm=slm,
            llm=llm,
            features=features,
            encode=encode,
            expert=expert,
        )

    def act(self, view: StepView, method: str, step: Step, threshold: float | None) -> Act:
        """Return the act of the method, or of the router of this name at a threshold, given the recorded replies and
        score. Raises NoRecord."""
        if self._continues(step):
            return Act(text=step.action.raw_text, source=step.action_source, decision=step.decision, said=step.said)
        slm, llm = GreedyActor(self._small(view, step), SLM), GreedyActor(self._large(step), LLM)
        if method in ROUTERS:
            if threshold is None:
                raise NoRecord(f"calibration.json has no threshold of {method}")
            return _finished(self._routed(slm, llm, view, method, step, threshold).act(view))
        if method == BEST_OF_K and self.inference.num_candidates > 1:
            return _finished(self._best_of_k(view, step).act(view))
        if method == STRONG or (method == ORACLE and step.action_source == LLM):
            act = _finished(llm.act(view))
            return act if method == STRONG else replace(act, decision=Decision(escalated=True))
        return _finished(slm.act(view))

    def expert_reply(self, view: StepView) -> Reply | None:
        """Return the LLM's reply at a step; None where the LLM is not the benchmark's expert."""
        if self.expert is None:
            return None
        return _finished(replace(self.llm.priced, model=_ExpertModel(self.expert)).ask(view))

    def llm_act(self, view: StepView, recorded: Step) -> Act:
        """Return the LLM's act at a step; the recorded one where the LLM is not the benchmark's expert."""
        return _finished(GreedyActor(self._large(recorded), LLM).act(view))

    def _continues(self, step: Step) -> bool:
        """True if the step executes a later call of the reply of the step before."""
        if step.decision is not None and step.decision.reason == "forced":
            return self.expert is None
        return step.said is not None and CONTINUES in step.said.extra and self.encode is None

    def _small(self, view: StepView, step: Step, samples: tuple[Sample, ...] = ()) -> PricedModel:
        """Return the small policy, which repeats its recorded reply; its prompt is counted anew where it can be."""
        proposal, own = step.proposal or Proposal(text=step.action.raw_text), step.action_source == SLM
        sample = Sample(text=proposal.text, message=step.said if own else None, reply_id=step.reply_id if own else None)
        return self.slm.replying(samples or (sample,), self._prompt(view, proposal.tokens_in), proposal.tokens_out)

    def _prompt(self, view: StepView, recorded: int) -> int:
        """Return the tokens of the small policy's prompt, counted with its tokenizer, else as recorded."""
        return recorded if self.encode is None else len(self.encode(view.messages))

    def _large(self, step: Step) -> PricedModel:
        """Return the LLM: the benchmark's expert, else the recorded action with the recorded tokens."""
        if self.expert is not None:
            return replace(self.llm.priced, model=_ExpertModel(self.expert))
        sample = Sample(text=step.action.raw_text, message=step.said, reply_id=step.reply_id)
        tokens = step.tokens or Tokens()
        return self.llm.replying((sample,), tokens.llm_in, tokens.llm_out)

    def _routed(
        self, slm: GreedyActor, llm: GreedyActor, view: StepView, method: str, step: Step, threshold: float
    ) -> Routed:
        """Return the routed pair, whose gate measures the same features and gives the recorded score, or the keyed
        score of a router that reads no feature."""
        inference, features = self.inference, self.features
        given = None if step.decision is None else step.decision.p_escalate
        if needs_score(threshold) and not (given is not None and 0 <= given <= 1):
            raise NoRecord(f"p_escalate {given} is no score")
        score = score_function(method, {}) if method in RECOMPUTED else lambda *state: given or 0.0
        needed = instruments(method, features)
        drawn = inference.num_candidates if needed.samples else 0
        tokens, proposal = step.tokens or Tokens(), step.proposal or Proposal(text="")
        # samples are not recorded: their tokens are the step's less the proposal's
        unrecorded = (Sample(text=""),) * drawn
        spent = (tokens.slm_in - proposal.tokens_in, tokens.slm_out - proposal.tokens_out) if drawn else (0, 0)
        extractor = FeatureExtractor(
            inference,
            verifier=self._verifier(step, encode=None if drawn else self.encode),
            slm=self.slm.replying(unrecorded, self._prompt(view, spent[0]), spent[1]),
            num_samples=drawn,
        )
        return Routed(slm.model, llm.model, ScoreGate(score, extractor, needed), threshold, inference.max_llm_calls)

    def _best_of_k(self, view: StepView, step: Step) -> BestOfK:
        """Return the best-of-K actor over the recorded candidates and scores."""
        inference, decision = self.inference, step.decision
        candidates = () if decision is None else decision.candidates
        if len(candidates) != inference.num_candidates:
            raise NoRecord(f"{len(candidates)} candidates are recorded, {inference.num_candidates} are drawn")
        scores: dict[str, float] = {}
        for candidate in candidates:
            if candidate.score is None or not 0 <= candidate.score <= 1:
                raise NoRecord(f"candidate score {candidate.score} is not in [0, 1]")
            if candidate.logprob is None or not _LOWEST <= candidate.logprob <= 0:
                raise NoRecord(f"candidate log-probability {candidate.logprob} is not in [{_LOWEST:g}, 0]")
            scores[candidate.text] = candidate.score
        samples = tuple(Sample(text=candidate.text, logprobs=(candidate.logprob or 0.0,)) for candidate in candidates)
        verifier = self._verifier(step, self.encode, scores)
        return BestOfK(self._small(view, step, samples), verifier, inference, inference.num_candidates)

    def _verifier(self, step: Step, encode: Encoder | None, scores: dict[str, float] | None = None) -> PricedVerifier:
        """Return the verifier. Its tokens are as recorded without a tokenizer, and for samples that are not stored."""
        if (read := (step.tokens or Tokens()).verifier_in) < 0:
            raise NoRecord(f"a verifier that read {read} tokens is recorded")
        return PricedVerifier(_RecordedVerifier(encode, [read], scores or {}), self.cost.slm_price)


def _of_endpoint(unasked: ChatModel, endpoint: TeacherConfig, cost: CostConfig, name: str, keys: EndpointKeys) -> _Side:
    return _Side(priced=priced_endpoint(unasked, endpoint, cost, name, keys), rate=teacher_rate(endpoint, keys=keys))


def _finished(play: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never waits, such as one over recorded models."""
    try:
        play.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise RuntimeError("a recorded model waited")
