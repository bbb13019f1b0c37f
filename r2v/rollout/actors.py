"""Actors, which choose actions: the teacher, the small policy, best-of-K, and the routed pair.

An actor is awaited once per step with everything that has been seen and done (`StepView`) and answers with one
action and its bill (`Act`). It never sees the world itself, the task's payload or a perturbation's name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from r2v.config import InferenceConfig, Price
from r2v.data.episode import ActionSource, Candidate, Decision, Tokens
from r2v.llm.providers.bodies import CONTINUES
from r2v.llm.types import ChatModel, Reply, Request, ScoreReply, ScoreRequest
from r2v.randomness import Key
from r2v.rollout.bill import PromptCache, StepBill, read_by_verifier, shared_prefix
from r2v.router.escalation import escalates, needs_score, recorded_score
from r2v.wire.message import Message, ToolCall, ToolSpec

SMALL_MODEL = "slm"
"""`PricedModel.name` of the small policy."""
Scorer = Callable[[ScoreRequest], Awaitable[ScoreReply]]
"""A verifier behind the wave engine: the probability that the action is good, in [0, 1], and the tokens read."""


@dataclass(frozen=True, kw_only=True)
class StepView:
    """An actor's input at one step: the conversation and the counters of the episode so far."""

    task_id: str
    seed: int
    step: int
    max_steps: int
    goal: str
    observations: tuple[str, ...]
    actions: tuple[str, ...]
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    llm_calls: int = 0
    llm_steps: tuple[int, ...] = ()
    """The steps that an LLM has acted, teacher or called by a router."""
    seconds: tuple[float, ...] = ()
    """The world's own seconds of each step so far."""

    def key(self, actor: str) -> Key:
        """Return the key of this step's random draws for an actor."""
        return (self.seed, self.task_id, self.step, actor)

    def messages_at(self, step: int) -> tuple[Message, ...]:
        """Return the conversation as it was at an earlier step."""
        # every step adds two messages: its action and the observation that follows
        return self.messages[: len(self.messages) - 2 * (self.step - step)]


@dataclass(frozen=True, kw_only=True)
class Act:
    """An action and its bill."""

    text: str
    source: ActionSource
    bill: StepBill = field(default_factory=StepBill)
    decision: Decision | None = None
    proposal: Reply | None = None
    """The first model's reply, the small policy's under a router. Its text and tokens are recorded."""
    said: Message | None = None
    """The action as its model gave it, with native calls and thoughts; None where it is text."""
    reply_id: str | None = None
    """The provider's id of the reply."""
    rest: tuple[Act, ...] = ()
    """Later actions of the same reply, executed next."""


class Actor(Protocol):
    """Chooses actions."""

    async def act(self, view: StepView) -> Act:
        """Return the action for this step."""
        ...


def asked_before(view: StepView, name: str) -> int | None:
    """Return the step at which a model's latest prompt was sent; None before its first. The small policy is asked at
    every step, the LLM where it has acted."""
    if name == SMALL_MODEL:
        return view.step - 1 if view.step else None
    return view.llm_steps[-1] if view.llm_steps else None


@dataclass(frozen=True)
class PricedModel:
    """A chat model with its price and prompt cache: the small policy or the LLM of an episode."""

    model: ChatModel
    price: Price
    name: str
    max_tokens: int
    cache: PromptCache | None = None
    """The prompt cache of its endpoint."""
    fit: Callable[[Request], Request] | None = None
    """Shortens a request to the model's context; None: requests are sent whole."""
    logprobs: bool = True
    """False if those of greedy replies are not read; those of samples are recorded."""

    async def ask(self, view: StepView, *, num_samples: int = 1, temperature: float = 0.0, top_p: float = 1.0) -> Reply:
        """Return the model's reply to the conversation so far."""
        return await self.model.reply(
            Request(
                messages=view.messages,
                key=view.key(self.name),
                tools=view.tools,
                num_samples=num_samples,
                temperature=temperature,
                top_p=top_p,
                max_tokens=self.max_tokens,
                logprobs=self.logprobs or temperature > 0,
            )
        )

    def bill(self, view: StepView, reply: Reply) -> StepBill:
        """Return the bill of a reply in tokens, USD and modelled seconds."""
        usage = reply.usage
        seconds = self.price.seconds_per_call + self.price.seconds_per_token * usage.tokens_out
        read, written = self._cached(view, usage.tokens_in)
        saved = 0.0 if self.cache is None else self.cache.saved(read, written)
        if self.name == SMALL_MODEL:
            tokens = Tokens(slm_in=usage.tokens_in, slm_out=usage.tokens_out, slm_cached=read, slm_written=written)
        else:
            tokens = Tokens(llm_in=usage.tokens_in, llm_out=usage.tokens_out, llm_cached=read, llm_written=written)
        return StepBill(tokens=tokens, cost=usage.cost_usd, cached_cost=usage.cost_usd - saved, seconds=seconds)

    def _cached(self, view: StepView, tokens_in: int) -> tuple[int, int]:
        if self.cache is None:
            return 0, 0
        if (before := asked_before(view, self.name)) is None:
            return self.cache.split(tokens_in, 0, 0)
        # a cache entry ages by the world's seconds since that prompt; a call's own seconds are left out
        shared = shared_prefix(self._shown(view, before), self._shown(view, view.step))
        return self.cache.split(tokens_in, shared, sum(view.seconds[before:]))

    def _shown(self, view: StepView, step: int) -> tuple[Message, ...]:
        messages = view.messages_at(step)
        if self.fit is None:
            return messages
        return self.fit(Request(messages=messages, key=(), tools=view.tools, max_tokens=self.max_tokens)).messages


@dataclass(frozen=True)
class PricedVerifier:
    """A verifier with the price of its input tokens."""

    scorer: Scorer
    price: Price

    async def scores(self, view: StepView, actions: Sequence[str]) -> tuple[dict[str, float], StepBill]:
        """Return the score of each distinct action in the state of the view, and one bill for all."""
        # samples repeat: an equal action is read and billed once
        replies = {
            text: await self.scorer(ScoreRequest(messages=view.messages, action=text))
            for text in dict.fromkeys(actions)
        }
        read = sum(reply.tokens_in for reply in replies.values())
        return {text: reply.score for text, reply in replies.items()}, read_by_verifier(read, self.price)


@dataclass(frozen=True)
class GreedyActor:
    """One model, one greedy action: the teacher while collecting, slm_only and llm_only in evaluation."""

    model: PricedModel
    source: ActionSource

    async def act(self, view: StepView) -> Act:
        reply = await self.model.ask(view)
        sample = reply.samples[0]
        first, *others = _calls_apart(sample.message, len(sample.more))
        return Act(
            text=sample.text,
            source=self.source,
            bill=self.model.bill(view, reply),
            proposal=reply,
            said=first,
            reply_id=sample.reply_id,
            rest=tuple(
                Act(text=text, source=self.source, said=message)
                for text, message in zip(sample.more, others, strict=True)
            ),
        )


def _calls_apart(message: Message | None, more: int) -> tuple[Message | None, ...]:
    """Return a message for each action of a reply: the first keeps everything but the later calls, one message each."""
    if message is None or len(message.calls) != 1 + more:
        return (message,) + (None,) * more
    first, *later = message.calls
    parts = tuple(part for part in message.parts if not isinstance(part, ToolCall) or part is first)
    return replace(message, content=parts), *(
        Message(role="assistant", content=(call,), extra={CONTINUES: True}) for call in later
    )


@dataclass(frozen=True)
class BestOfK:
    """Best of K samples of the small policy by the verifier's score (the first of equals)."""

    slm: PricedModel
    verifier: PricedVerifier
    inference: InferenceConfig
    num_candidates: int

    async def act(self, view: StepView) -> Act:
        reply = await self.slm.ask(
            view, num_samples=self.num_candidates, temperature=self.inference.temperature, top_p=self.inference.top_p
        )
        scores, read = await self.verifier.scores(view, [sample.text for sample in reply.samples])
        best = max(scores, key=lambda text: scores[text])
        candidates = tuple(
            Candidate(text=s.text, logprob=round(sum(s.logprobs), 6), score=scores[s.text]) for s in reply.samples
        )
        decision = Decision(candidates=candidates, chosen_index=[s.text for s in reply.samples].index(best))
        return Act(
            text=best,
            source="slm",
            bill=self.slm.bill(view, reply) + read,
            decision=decision,
            proposal=reply,
        )


class Gate(Protocol):
    """A router at work: it scores the state by the expected gain of an LLM step."""

    async def __call__(self, view: StepView, proposal: Reply) -> tuple[float, StepBill]:
        """Return the score, in [0, 1], and the bill of measuring it, before the proposal is executed."""
        ...


@dataclass(frozen=True)
class Routed:
    """The routed pair: the small policy proposes, and by the gate's score either its action is played or the LLM acts.

    The rule is `r2v.router.escalation`. Where the threshold alone decides, no gate is consulted and a model that is not
    needed is not called: threshold 1 is slm_only and threshold 0 is llm_only, bill included.
    """

    slm: PricedModel
    llm: PricedModel
    gate: Gate
    threshold: float
    max_llm_calls: int

    async def act(self, view: StepView) -> Act:
        if not needs_score(self.threshold) and escalates(None, self.threshold):  # threshold 0: the LLM at every step
            return await self._escalate(view, None, None)
        act = await GreedyActor(self.slm, "slm").act(view)
        if not needs_score(self.threshold):  # threshold 1: never the LLM
            return self._keep(act, None, "router")
        assert act.proposal is not None
        probability, read = await self.gate(view, act.proposal)
        # the decision uses the rounded score that is recorded, so that a replay decides alike
        score, act = recorded_score(probability), replace(act, bill=act.bill + read)
        if not escalates(score, self.threshold):
            return self._keep(act, score, "router")
        if view.llm_calls >= self.max_llm_calls:
            return self._keep(act, score, "budget")
        return await self._escalate(view, act, score)

    def _keep(self, act: Act, score: float | None, reason: Literal["router", "budget"]) -> Act:
        decision = Decision(p_escalate=score, threshold=self.threshold, reason=reason)
        return replace(act, source="slm", decision=decision)

    async def _escalate(self, view: StepView, proposed: Act | None, score: float | None) -> Act:
        act = await GreedyActor(self.llm, "llm_fallback").act(view)
        decision = Decision(p_escalate=score, threshold=self.threshold, escalated=True)
        # later calls of the same reply are executed without another decision
        forced = Decision(threshold=self.threshold, escalated=True, reason="forced")
        act = replace(act, rest=tuple(replace(later, decision=forced) for later in act.rest))
        if proposed is None:
            return replace(act, decision=decision, proposal=None)
        return replace(act, bill=act.bill + proposed.bill, decision=decision, proposal=proposed.proposal)
