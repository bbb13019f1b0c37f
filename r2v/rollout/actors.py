"""Actors, which choose actions: the teacher, the small policy, best-of-K, and the routed pair.

An actor is awaited once per step with everything that has been seen and done (`StepView`) and answers with one
action and its bill (`Act`). It never sees the world itself, the task's payload or a perturbation's name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from r2v.config import InferenceConfig, Price
from r2v.data.episode import ActionSource, Candidate, Decision, Tokens
from r2v.llm.types import ChatModel, Message, Reply, Request, ScoreRequest, ToolSpec
from r2v.randomness import Key
from r2v.router.escalation import escalates, needs_score, recorded_score

Scorer = Callable[[ScoreRequest], Awaitable[float]]
"""A verifier behind the wave engine: the probability that the action is good, in [0, 1]."""


@dataclass(frozen=True, kw_only=True)
class StepView:
    """What an actor sees at one step: the conversation so far and where the episode stands."""

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

    def key(self, actor: str) -> Key:
        """What names this step's draws for an actor."""
        return (self.seed, self.task_id, self.step, actor)


@dataclass(frozen=True, kw_only=True)
class Act:
    """An action and its bill; `seconds` is modelled from tokens."""

    text: str
    source: ActionSource
    tokens: Tokens = field(default_factory=Tokens)
    cost: float = 0.0
    seconds: float = 0.0
    decision: Decision | None = None
    proposal: Reply | None = None
    """The small policy's reply, for whoever computes features; never stored."""


class Actor(Protocol):
    """Chooses actions."""

    async def act(self, view: StepView) -> Act:
        """The action for this step."""
        ...


@dataclass(frozen=True)
class PricedModel:
    """A chat model with its price: the small policy or the LLM, whichever an episode is charged for."""

    model: ChatModel
    price: Price
    name: str
    max_tokens: int

    async def ask(self, view: StepView, *, num_samples: int = 1, temperature: float = 0.0, top_p: float = 1.0) -> Reply:
        """The model's reply to the conversation so far."""
        return await self.model.reply(
            Request(
                messages=view.messages,
                key=view.key(self.name),
                tools=view.tools,
                num_samples=num_samples,
                temperature=temperature,
                top_p=top_p,
                max_tokens=self.max_tokens,
            )
        )

    def seconds(self, reply: Reply) -> float:
        """Modelled latency of a reply."""
        return self.price.seconds_per_call + self.price.seconds_per_token * reply.usage.tokens_out


def _tokens(name: str, reply: Reply) -> Tokens:
    if name == "slm":
        return Tokens(slm_in=reply.usage.tokens_in, slm_out=reply.usage.tokens_out)
    return Tokens(llm_in=reply.usage.tokens_in, llm_out=reply.usage.tokens_out)


def add_tokens(a: Tokens, b: Tokens) -> Tokens:
    """Both bills together."""
    return Tokens(
        slm_in=a.slm_in + b.slm_in,
        slm_out=a.slm_out + b.slm_out,
        llm_in=a.llm_in + b.llm_in,
        llm_out=a.llm_out + b.llm_out,
    )


@dataclass(frozen=True)
class GreedyActor:
    """One model, one greedy action: the teacher while collecting, slm_only and llm_only in evaluation."""

    model: PricedModel
    source: ActionSource

    async def act(self, view: StepView) -> Act:
        reply = await self.model.ask(view)
        return Act(
            text=reply.text,
            source=self.source,
            tokens=_tokens(self.model.name, reply),
            cost=reply.usage.cost_usd,
            seconds=self.model.seconds(reply),
            proposal=reply,
        )


@dataclass(frozen=True)
class BestOfK:
    """K samples of the small policy, the verifier's favourite is played (the first of equals)."""

    slm: PricedModel
    score: Scorer
    inference: InferenceConfig
    num_candidates: int

    async def act(self, view: StepView) -> Act:
        reply = await self.slm.ask(
            view, num_samples=self.num_candidates, temperature=self.inference.temperature, top_p=self.inference.top_p
        )
        scores = {
            text: await self.score(ScoreRequest(messages=view.messages, action=text))
            for text in dict.fromkeys(sample.text for sample in reply.samples)
        }
        best = max(scores, key=lambda text: scores[text])
        candidates = tuple(
            Candidate(text=s.text, logprob=round(sum(s.logprobs), 6), score=scores[s.text]) for s in reply.samples
        )
        decision = Decision(candidates=candidates, chosen_index=[s.text for s in reply.samples].index(best))
        return Act(
            text=best,
            source="slm",
            tokens=_tokens("slm", reply),
            cost=reply.usage.cost_usd,
            seconds=self.slm.seconds(reply),
            decision=decision,
            proposal=reply,
        )


class Gate(Protocol):
    """A router at work: how much an LLM step promises here, in [0, 1]."""

    async def __call__(self, view: StepView, proposal: Reply) -> float:
        """The score. Nothing has been executed yet."""
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
        if not needs_score(self.threshold) and escalates(None, self.threshold):
            return await self._escalate(view, None, None)
        act = await GreedyActor(self.slm, "slm").act(view)
        if not needs_score(self.threshold):
            return self._keep(act, None, "router")
        assert act.proposal is not None
        score = recorded_score(await self.gate(view, act.proposal))
        if not escalates(score, self.threshold):
            return self._keep(act, score, "router")
        if view.llm_calls >= self.max_llm_calls:
            return self._keep(act, score, "budget")
        return await self._escalate(view, act, score)

    def _keep(self, act: Act, score: float | None, reason: Literal["router", "budget"]) -> Act:
        decision = Decision(p_escalate=score, threshold=self.threshold, reason=reason)
        return replace(act, source="slm", decision=decision)

    async def _escalate(self, view: StepView, proposal: Act | None, score: float | None) -> Act:
        act = await GreedyActor(self.llm, "llm_fallback").act(view)
        decision = Decision(p_escalate=score, threshold=self.threshold, escalated=True)
        if proposal is None:
            return replace(act, decision=decision, proposal=None)
        return replace(
            act,
            tokens=add_tokens(act.tokens, proposal.tokens),
            cost=act.cost + proposal.cost,
            seconds=act.seconds + proposal.seconds,
            decision=decision,
            proposal=proposal.proposal,
        )
