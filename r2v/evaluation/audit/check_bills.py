"""The bill of an episode, counted again: tokens by the tokenizer, cost by the prices, simulated time by both.

The bundled models' tokenizers are at hand, and so is a benchmark's own expert, which is a program and no model: what it
was asked, what it answers and what that costs are computed here. A provider's bill, and the tokens of a model that R2V
does not bring, can only be bounded.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from r2v.config.methods import ROUTERS
from r2v.data.episode import Episode, Step, Tokens
from r2v.envs.base import Benchmark, Demonstrated
from r2v.errors import UsageError
from r2v.evaluation.audit.check_decisions import LLM
from r2v.evaluation.audit.check_spelling import Spelling
from r2v.evaluation.settings import EvaluateSettings
from r2v.llm.providers.prices import Rate, prices_version
from r2v.llm.providers.teacher import teacher_rate
from r2v.llm.scripted import ScriptedBackend
from r2v.llm.types import Reply, Request
from r2v.rollout.actors import StepView
from r2v.rollout.bill import PromptCache, shared_prefix
from r2v.router.baselines import Instruments, instruments
from r2v.router.escalation import needs_score
from r2v.storage.weights import BUNDLED

if TYPE_CHECKING:
    from r2v.policy.prompt_encoder import Encoder

_USD, _SECONDS = 2e-9, 2e-6
"""What rounding leaves: costs are stored with 10 digits, seconds with 6."""

_REMEMBERED = 1 << 18
"""Tokens of messages that are kept: of the episodes of one task and seed, which are audited together."""

_OF_ITS_WORDS = "desk"
"""The benchmark whose words the bundled policies were made of: there they write nothing that is not text."""


@dataclass(frozen=True, kw_only=True)
class TokenRange:
    """Token counts that are possible, ends included."""

    low: int = 0
    high: float = 0

    def __add__(self, other: TokenRange) -> TokenRange:
        return TokenRange(low=self.low + other.low, high=self.high + other.high)

    def __contains__(self, count: int) -> bool:
        return self.low <= count <= self.high

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low} to {self.high}"


_ANY = TokenRange(low=1, high=math.inf)


def exactly(count: int) -> TokenRange:
    """One possible count."""
    return TokenRange(low=count, high=count)


@dataclass(frozen=True, kw_only=True)
class Biller:
    """Counts bills again. `encode` and `spelling` are the small policy's tokenizer, where it is at hand; `expert` the
    LLM, where it is the benchmark's own."""

    settings: EvaluateSettings
    encode: Encoder | None
    spelling: Spelling | None
    expert: ScriptedBackend | None
    price: tuple[float, float] | None
    """USD per million tokens of the LLM, prompt and reply; None where nobody knows them."""
    cache: PromptCache
    """The prompt cache of the LLM's endpoint."""

    @classmethod
    def of(cls, settings: EvaluateSettings, benchmark: Benchmark) -> Biller:
        """The instruments for these settings; nothing that a folder names is loaded."""
        expert = None
        if settings.teacher.provider == "scripted" and isinstance(benchmark, Demonstrated):
            expert = ScriptedBackend(benchmark.expert, name="expert", price=settings.cost.llm)
        price, cache = _price(settings), _cache(settings)
        if settings.policy.model_name not in BUNDLED:
            return cls(settings=settings, encode=None, spelling=None, expert=expert, price=price, cache=cache)
        from transformers import PreTrainedTokenizerFast  # AutoTokenizer makes the same of these files, with torch

        from r2v.policy.prompt_encoder import Encoder

        tokenizer = PreTrainedTokenizerFast.from_pretrained(BUNDLED[settings.policy.model_name])
        encoder = Encoder.of(tokenizer, settings.policy, settings.inference.max_new_tokens, remember=_REMEMBERED)
        spelling = Spelling.of(tokenizer, settings.inference.max_new_tokens)
        return cls(settings=settings, encode=encoder, spelling=spelling, expert=expert, price=price, cache=cache)

    def asked(self, view: StepView) -> Reply | None:
        """What the LLM says at a step; None where it is not at hand."""
        if self.expert is None:
            return None
        request = Request(
            messages=view.messages,
            key=view.key("llm"),
            tools=view.tools,
            num_samples=1,
            temperature=0.0,
            top_p=1.0,
            max_tokens=self.settings.teacher.max_tokens,
        )
        return self.expert.answer([request])[0]

    def problems(
        self, episode: Episode, views: Sequence[StepView], threshold: float | None, seconds: float
    ) -> Iterator[tuple[str, str]]:
        """(kind, what the bill should say) of an episode that replays; `seconds` are the world's own."""
        counted = _Counted()
        for step, view in zip(episode.steps, views, strict=True):
            by_llm = step.action_source == LLM
            gated = episode.method in ROUTERS and threshold is not None and needs_score(threshold)
            if not by_llm or gated:
                counted.slm_calls += 1
                counted.tokens["slm_in"] += self._prompt(view)
                counted.tokens["slm_out"] += self._proposal(step, proposed=by_llm)
                yield from (("spelling", text) for text in self._misspelt(step, by_llm))
            if gated:
                self._gate(counted, instruments(episode.method, self.settings.router.features), step, view, by_llm)
            elif step.decision is not None and step.decision.candidates:
                self._score(counted, view, dict.fromkeys(_replies(step)))
            if by_llm:
                counted.llm_calls += 1
                reply = self.asked(view)
                if reply is not None and reply.text != step.action.raw_text:
                    yield "LLM's action", f"step {step.step_idx} is not what the benchmark's expert answers"
                self._ask(counted, view, reply)
        for name, possible in counted.tokens.items():
            if (recorded := getattr(episode.tokens, name)) not in possible:
                yield "tokens", f"tokens.{name} is {recorded}, counted {possible}"
        if episode.tokens.llm_cached + episode.tokens.llm_written > episode.tokens.llm_in:
            yield "tokens", f"tokens.llm_cached and llm_written are more than llm_in, {episode.tokens.llm_in}"
        yield from self._money(episode, counted.llm_calls)
        yield from self._time(episode, counted, seconds)

    def _gate(self, counted: _Counted, asked: Instruments, step: Step, view: StepView, by_llm: bool) -> None:
        """What a router's score had to ask for at a step."""
        samples = self.settings.inference.num_candidates if asked.samples else 0
        if samples:
            counted.slm_calls += 1
            counted.tokens["slm_in"] += self._prompt(view)
            counted.tokens["slm_out"] += TokenRange(high=samples * self.settings.inference.max_new_tokens)
        if not asked.verifier:
            return
        self._score(counted, view, () if by_llm else [step.action.raw_text], unknown=by_llm + samples)
        if asked.previous and view.step - 1 in view.llm_steps:
            before = replace(view, step=view.step - 1, messages=view.messages_at(view.step - 1))
            self._score(counted, before, view.actions[-1:])

    def _score(self, counted: _Counted, view: StepView, actions: Iterable[str], unknown: int = 0) -> None:
        """The verifier reads the context with each of these actions, and with up to `unknown` others."""
        counted.verifier_calls += 1
        prompt = self._prompt(view)
        for text in actions:
            action = _ANY if self.encode is None else exactly(len(self.encode.action_ids(text)))
            counted.tokens["verifier_in"] += prompt + action
        for _ in range(unknown):
            counted.tokens["verifier_in"] += TokenRange(high=math.inf)

    def _ask(self, counted: _Counted, view: StepView, reply: Reply | None) -> None:
        """The LLM reads the context, as much of it from its prompt cache as stands there."""
        if reply is None:
            for name in ("llm_in", "llm_out"):
                counted.tokens[name] += _ANY
            for name in ("llm_cached", "llm_written"):
                counted.tokens[name] += TokenRange(high=math.inf)
            return
        before = view.messages_at(view.llm_steps[-1]) if view.llm_steps else ()
        cached, written = self.cache.split(reply.usage.tokens_in, shared_prefix(before, view.messages), view.idle)
        counted.tokens["llm_in"] += exactly(reply.usage.tokens_in)
        counted.tokens["llm_out"] += exactly(reply.usage.tokens_out)
        counted.tokens["llm_cached"] += exactly(cached)
        counted.tokens["llm_written"] += exactly(written)

    def _prompt(self, view: StepView) -> TokenRange:
        if self.encode is None:
            return TokenRange(low=1, high=self.settings.policy.max_seq_len)
        return exactly(len(self.encode(view.messages)))

    def _proposal(self, step: Step, *, proposed: bool) -> TokenRange:
        """Tokens of the small policy's reply. One that was not played is not recorded, so it is only bounded; one in a
        world of other words, or a sample, may hold special tokens, which no text shows."""
        most = self.settings.inference.max_new_tokens
        texts = _replies(step)
        shown = self.settings.env.benchmark == _OF_ITS_WORDS and len(texts) == 1
        total = TokenRange()
        for text in texts:
            pieces = None if proposed or self.spelling is None else self.spelling.count(text)
            low, high = (0, most) if pieces is None else pieces
            total += TokenRange(low=min(low + 1, most), high=min(high + 1, most) if shown else most)
        return total

    def _misspelt(self, step: Step, by_llm: bool) -> Iterator[str]:
        """Texts of a step that the small policy cannot have written: not of its words, or longer than it may write."""
        if by_llm or self.spelling is None:
            return
        for text in _replies(step):
            if self.spelling.count(text) is None:
                yield f"step {step.step_idx}: the small policy cannot have written {text!r:.60}"

    def _money(self, episode: Episode, llm_calls: int) -> Iterator[tuple[str, str]]:
        tokens, cost = episode.tokens, self.settings.cost
        own = ((tokens.slm_in + tokens.verifier_in) * cost.slm.input + tokens.slm_out * cost.slm.output) / 1e6
        if self.price is None and llm_calls:
            for name in ("total_cost", "cached_cost"):
                if (recorded := getattr(episode, name) or 0.0) < own - _USD:
                    yield name, f"is {recorded}, the small policy and its verifier alone cost {own:.10g}"
            return
        prompt, reply = self.price or (0.0, 0.0)
        listed = own + (tokens.llm_in * prompt + tokens.llm_out * reply) / 1e6
        billed = listed - self.cache.saved(tokens.llm_cached, tokens.llm_written)
        ours = self.settings.teacher.provider == "scripted" or self.settings.teacher.usd_in is not None
        hint = "" if ours or not llm_calls else f" by {prices_version()}"
        for name, counted in (("total_cost", listed), ("cached_cost", billed)):
            recorded = getattr(episode, name)
            if recorded is None or not -_USD <= recorded - counted <= self._dearer(tokens) + _USD:
                yield name, f"is {recorded}, its tokens at its prices cost {counted:.10g}{hint}"

    def _dearer(self, tokens: Tokens) -> float:
        """The most USD by which prompts so long that a request costs more can exceed the plain price: how long each
        prompt was is not recorded."""
        rate = self._rate
        if rate is None or rate.surcharge_above is None or tokens.llm_in <= rate.surcharge_above:
            return 0.0
        usd_in, usd_out = tokens.llm_in * rate.input, tokens.llm_out * rate.output
        return (usd_in * (rate.surcharge_in - 1) + usd_out * (rate.surcharge_out - 1)) / 1e6

    @functools.cached_property
    def _rate(self) -> Rate | None:
        return _rate(self.settings)

    def _time(self, episode: Episode, counted: _Counted, seconds: float) -> Iterator[tuple[str, str]]:
        slm, llm, tokens = self.settings.cost.slm, self.settings.cost.llm, episode.tokens
        modelled = (counted.slm_calls + counted.verifier_calls) * slm.seconds_per_call
        modelled += slm.seconds_per_token * tokens.slm_out
        modelled += counted.llm_calls * llm.seconds_per_call + llm.seconds_per_token * tokens.llm_out + seconds
        if abs(episode.sim_time_seconds - modelled) > _SECONDS:
            yield "sim_time_seconds", f"is {episode.sim_time_seconds}, calls, tokens and the world make {modelled:.8g}"


@dataclass(kw_only=True)
class _Counted:
    """What an episode has asked of its models, as far as it can be counted."""

    slm_calls: int = 0
    verifier_calls: int = 0
    llm_calls: int = 0
    tokens: dict[str, TokenRange] = field(
        default_factory=lambda: {each.name: exactly(0) for each in dataclasses.fields(Tokens)}
    )


def _replies(step: Step) -> list[str]:
    """What the small policy wrote at a step, as far as that is recorded."""
    if step.decision is not None and step.decision.candidates:
        return [candidate.text for candidate in step.decision.candidates]
    return [step.action.raw_text]


def _price(settings: EvaluateSettings) -> tuple[float, float] | None:
    """What the LLM is charged at: the expert by the configuration, a provider by its list price."""
    rate = _rate(settings)
    if settings.teacher.provider == "scripted":
        return settings.cost.llm.input, settings.cost.llm.output
    return None if rate is None else (rate.input, rate.output)


def _rate(settings: EvaluateSettings) -> Rate | None:
    try:
        return None if settings.teacher.provider == "scripted" else teacher_rate(settings.teacher)
    except UsageError:
        return None


def _cache(settings: EvaluateSettings) -> PromptCache:
    rate = _rate(settings)
    if rate is None:
        return PromptCache.of(settings.cost.llm.input, settings.cost.cache)
    return PromptCache.of(rate.input, settings.cost.cache, rate.cached, rate.write_5m)
