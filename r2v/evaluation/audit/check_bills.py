"""The bill of an episode, counted again: tokens by the tokenizer, cost by the prices, simulated time by both.

The bundled models' tokenizers are at hand, and so is a benchmark's own expert, which is a program and no model: what it
was asked, what it answers and what that costs are computed here. A provider's bill, and the tokens of a model that R2V
does not bring, can only be bounded.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from r2v.config import TeacherConfig
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
from r2v.rollout.actors import StepView, asked_before
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


_THOUGHTS = 100_000
"""Tokens of thoughts that a model which sets itself no budget may spend on a reply."""
_ANY = TokenRange(low=1, high=math.inf)


def exactly(count: int) -> TokenRange:
    """One possible count."""
    return TokenRange(low=count, high=count)


@dataclass(frozen=True, kw_only=True)
class Charges:
    """The prices of one model of the pair."""

    price: tuple[float, float] | None
    """USD per million tokens, prompt and reply; None where nobody knows them."""
    rate: Rate | None = None
    """Of a provider's model."""
    cache: PromptCache | None = None
    """The prompt cache of its endpoint."""

    @classmethod
    def of_llm(cls, settings: EvaluateSettings) -> Charges:
        """Of the LLM: the expert by the configuration, a provider's by its list price."""
        if settings.teacher.provider != "scripted":
            return cls._of_endpoint(settings.teacher, settings)
        llm = settings.cost.llm_price
        return cls(price=(llm.input, llm.output), cache=PromptCache.of(llm.input, settings.cost))

    @classmethod
    def of_policy(cls, settings: EvaluateSettings) -> Charges:
        """Of the small policy."""
        if settings.policy.is_api:
            return cls._of_endpoint(settings.policy.as_endpoint(settings.teacher), settings)
        return cls(price=(settings.cost.slm.input, settings.cost.slm.output))

    @classmethod
    def _of_endpoint(cls, asked: TeacherConfig, settings: EvaluateSettings) -> Charges:
        try:
            rate = teacher_rate(asked)
        except UsageError:
            return cls(price=None, cache=PromptCache.of(settings.cost.llm.input, settings.cost))
        cache = PromptCache.of(rate.input, settings.cost, rate.cached, rate.write_5m)
        return cls(price=(rate.input, rate.output), rate=rate, cache=cache)

    def listed(self, tokens_in: int, tokens_out: int) -> float:
        """USD at list prices; 0 where they are not known."""
        prompt, reply = self.price or (0.0, 0.0)
        return (tokens_in * prompt + tokens_out * reply) / 1e6

    def dearer(self, tokens_in: int, tokens_out: int) -> float:
        """The most USD by which prompts so long that a request costs more can exceed the plain price: how long each
        prompt was is not recorded."""
        rate = self.rate
        if rate is None or rate.surcharge_above is None or tokens_in <= rate.surcharge_above:
            return 0.0
        usd_in, usd_out = tokens_in * rate.input, tokens_out * rate.output
        return (usd_in * (rate.surcharge_in - 1) + usd_out * (rate.surcharge_out - 1)) / 1e6


@dataclass(frozen=True, kw_only=True)
class Biller:
    """Counts bills again. `encode` and `spelling` are the small policy's tokenizer, where it is at hand; `expert` the
    LLM, where it is the benchmark's own."""

    settings: EvaluateSettings
    encode: Encoder | None
    spelling: Spelling | None
    expert: ScriptedBackend | None
    small: Charges
    large: Charges

    @classmethod
    def of(cls, settings: EvaluateSettings, benchmark: Benchmark) -> Biller:
        """The instruments for these settings; nothing that a folder names is loaded."""
        expert = None
        if settings.teacher.provider == "scripted" and isinstance(benchmark, Demonstrated):
            expert = ScriptedBackend(benchmark.expert, name="expert", price=settings.cost.llm_price)
        small, large = Charges.of_policy(settings), Charges.of_llm(settings)
        if settings.policy.is_api or settings.policy.model_name not in BUNDLED:
            return cls(settings=settings, encode=None, spelling=None, expert=expert, small=small, large=large)
        from transformers import PreTrainedTokenizerFast  # AutoTokenizer makes the same of these files, with torch

        from r2v.policy.prompt_encoder import Encoder

        tokenizer = PreTrainedTokenizerFast.from_pretrained(BUNDLED[settings.policy.model_name])
        encoder = Encoder.of(tokenizer, settings.policy, settings.inference.max_new_tokens, remember=_REMEMBERED)
        spelling = Spelling.of(tokenizer, settings.inference.max_new_tokens)
        return cls(settings=settings, encode=encoder, spelling=spelling, expert=expert, small=small, large=large)

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
                if self.settings.policy.is_api:
                    for name in ("slm_cached", "slm_written"):
                        counted.tokens[name] += TokenRange(high=math.inf)
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
        for side in ("slm", "llm"):
            read, cached, written = (getattr(episode.tokens, f"{side}_{kind}") for kind in ("in", "cached", "written"))
            if cached + written > read:
                yield "tokens", f"tokens.{side}_cached and {side}_written are more than {side}_in, {read}"
        yield from self._money(episode)
        yield from self._time(episode, counted, seconds)

    def _gate(self, counted: _Counted, asked: Instruments, step: Step, view: StepView, by_llm: bool) -> None:
        """What a router's score had to ask for at a step."""
        samples = self.settings.inference.num_candidates if asked.samples else 0
        if samples:
            counted.slm_calls += 1
            counted.tokens["slm_in"] += self._prompt(view)
            counted.tokens["slm_out"] += TokenRange(high=samples * self._longest_reply)
            for name in ("slm_cached", "slm_written") if self.settings.policy.is_api else ():
                counted.tokens[name] += TokenRange(high=math.inf)
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
        last = asked_before(view, "llm")
        before, idle = ((), 0.0) if last is None else (view.messages_at(last), sum(view.seconds[last:]))
        assert self.large.cache is not None
        cached, written = self.large.cache.split(reply.usage.tokens_in, shared_prefix(before, view.messages), idle)
        counted.tokens["llm_in"] += exactly(reply.usage.tokens_in)
        counted.tokens["llm_out"] += exactly(reply.usage.tokens_out)
        counted.tokens["llm_cached"] += exactly(cached)
        counted.tokens["llm_written"] += exactly(written)

    def _prompt(self, view: StepView) -> TokenRange:
        if self.encode is None:
            return _ANY if self.settings.policy.is_api else TokenRange(low=1, high=self.settings.policy.max_seq_len)
        return exactly(len(self.encode(view.messages)))

    def _proposal(self, step: Step, *, proposed: bool) -> TokenRange:
        """Tokens of the small policy's reply. One that was not played is not recorded, so it is only bounded; one in a
        world of other words, or a sample, may hold special tokens, which no text shows."""
        most = self._longest_reply
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

    @property
    def _longest_reply(self) -> int:
        """Tokens that the small policy may write at a step; thoughts of a model behind an API are beside its reply."""
        policy = self.settings.policy
        if not policy.is_api:
            return self.settings.inference.max_new_tokens
        return policy.api.max_tokens + (policy.api.thinking_tokens or _THOUGHTS)

    def _money(self, episode: Episode) -> Iterator[tuple[str, str]]:
        tokens = episode.tokens
        listed, saved, dearer, unknown = tokens.verifier_in * self.settings.cost.slm.input / 1e6, 0.0, 0.0, False
        for side, charges in (("slm", self.small), ("llm", self.large)):
            read, wrote, cached, written = (
                getattr(tokens, f"{side}_{kind}") for kind in ("in", "out", "cached", "written")
            )
            unknown = unknown or (charges.price is None and read + wrote > 0)
            listed, dearer = listed + charges.listed(read, wrote), dearer + charges.dearer(read, wrote)
            if charges.cache is not None and charges.price is not None:
                saved += charges.cache.saved(cached, written)
        if unknown:
            for name in ("total_cost", "cached_cost"):
                if (recorded := getattr(episode, name) or 0.0) < listed - max(0.0, saved) - _USD:
                    yield name, f"is {recorded}, what has a price alone costs {listed:.10g}"
            return
        of_table = self.large.rate is not None and self.settings.teacher.usd_in is None and tokens.llm_in > 0
        of_table = of_table or (self.small.rate is not None and self.settings.policy.api.usd_in is None)
        hint = f" by {prices_version()}" if of_table else ""
        for name, counted in (("total_cost", listed), ("cached_cost", listed - saved)):
            recorded = getattr(episode, name)
            if recorded is None or not -_USD <= recorded - counted <= dearer + _USD:
                yield name, f"is {recorded}, its tokens at its prices cost {counted:.10g}{hint}"

    def _time(self, episode: Episode, counted: _Counted, seconds: float) -> Iterator[tuple[str, str]]:
        llm, tokens = self.settings.cost.llm_price, episode.tokens
        slm = llm if self.settings.policy.is_api else self.settings.cost.slm_price
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
