"""The bill of an episode, counted again: tokens by the tokenizer, cost by the prices, simulated time by both.

The bundled models' tokenizers are at hand, and so is a benchmark's own expert, which is a program and no model: what it
was asked, what it answers and what that costs are computed here. A provider's bill, and the tokens of a model that R2V
does not bring, can only be bounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from r2v.config.methods import ROUTERS
from r2v.data.episode import Episode, Step
from r2v.envs.base import Benchmark, Demonstrated
from r2v.errors import UsageError
from r2v.evaluation.audit.check_decisions import LLM
from r2v.evaluation.audit.check_spelling import Spelling
from r2v.evaluation.settings import EvaluateSettings
from r2v.llm.providers.prices import prices_version
from r2v.llm.providers.teacher import teacher_rate
from r2v.llm.scripted import ScriptedBackend
from r2v.llm.types import Message, Reply, Request
from r2v.rollout.actors import StepView
from r2v.router.escalation import needs_score
from r2v.storage.weights import BUNDLED

_USD, _SECONDS = 2e-9, 2e-6
"""What rounding leaves: costs are stored with 10 digits, seconds with 6."""

_REMEMBERED = 1 << 18
"""Tokens of messages that are kept: of the episodes of one task and seed, which are audited together."""

_OF_ITS_WORDS = "desk"
"""The benchmark whose words the bundled policies were made of: there they write nothing that is not text."""

Encode = Callable[[Sequence[Message]], list[int]]


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
    encode: Encode | None
    spelling: Spelling | None
    expert: ScriptedBackend | None
    price: tuple[float, float] | None
    """USD per million tokens of the LLM, prompt and reply; None where nobody knows them."""

    @classmethod
    def of(cls, settings: EvaluateSettings, benchmark: Benchmark) -> Biller:
        """The instruments for these settings; nothing that a folder names is loaded."""
        expert = None
        if settings.teacher.provider == "scripted" and isinstance(benchmark, Demonstrated):
            expert = ScriptedBackend(benchmark.expert, name="expert", price=settings.cost.llm)
        price = _price(settings)
        if settings.policy.model_name not in BUNDLED:
            return cls(settings=settings, encode=None, spelling=None, expert=expert, price=price)
        from transformers import PreTrainedTokenizerFast  # AutoTokenizer makes the same of these files, with torch

        from r2v.policy.prompt_encoder import Encoder

        tokenizer = PreTrainedTokenizerFast.from_pretrained(BUNDLED[settings.policy.model_name])
        encoder = Encoder.of(tokenizer, settings.policy, settings.inference.max_new_tokens, remember=_REMEMBERED)
        spelling = Spelling.of(tokenizer, settings.inference.max_new_tokens)
        return cls(settings=settings, encode=encoder, spelling=spelling, expert=expert, price=price)

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
        totals = {name: exactly(0) for name in ("slm_in", "slm_out", "llm_in", "llm_out")}
        slm_calls = llm_calls = 0
        for step, view in zip(episode.steps, views, strict=True):
            by_llm = step.action_source == LLM
            if not by_llm or (episode.method in ROUTERS and threshold is not None and needs_score(threshold)):
                slm_calls += 1
                totals["slm_in"] += self._prompt(view)
                totals["slm_out"] += self._proposal(step, proposed=by_llm)
                yield from (("spelling", text) for text in self._misspelt(step, by_llm))
            if by_llm:
                llm_calls += 1
                reply = self.asked(view)
                if reply is not None and reply.text != step.action.raw_text:
                    yield "LLM's action", f"step {step.step_idx} is not what the benchmark's expert answers"
                totals["llm_in"] += _ANY if reply is None else exactly(reply.usage.tokens_in)
                totals["llm_out"] += _ANY if reply is None else exactly(reply.usage.tokens_out)
        for name, possible in totals.items():
            if (recorded := getattr(episode.tokens, name)) not in possible:
                yield "tokens", f"tokens.{name} is {recorded}, counted {possible}"
        yield from self._money(episode, llm_calls)
        yield from self._time(episode, slm_calls, llm_calls, seconds)

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
        own = (tokens.slm_in * cost.slm.input + tokens.slm_out * cost.slm.output) / 1e6
        if self.price is None and llm_calls:
            if episode.total_cost < own - _USD:
                yield "total_cost", f"is {episode.total_cost}, the small policy alone cost {own:.10g}"
            return
        prompt, reply = self.price or (0.0, 0.0)
        theirs = (tokens.llm_in * prompt + tokens.llm_out * reply) / 1e6
        if abs(episode.total_cost - own - theirs) > _USD:
            listed = self.settings.teacher.provider != "scripted" and self.settings.teacher.usd_in is None
            hint = f" by {prices_version()}" if listed and llm_calls else ""
            yield "total_cost", f"is {episode.total_cost}, its tokens at its prices cost {own + theirs:.10g}{hint}"

    def _time(self, episode: Episode, slm_calls: int, llm_calls: int, seconds: float) -> Iterator[tuple[str, str]]:
        slm, llm, tokens = self.settings.cost.slm, self.settings.cost.llm, episode.tokens
        modelled = slm_calls * slm.seconds_per_call + slm.seconds_per_token * tokens.slm_out
        modelled += llm_calls * llm.seconds_per_call + llm.seconds_per_token * tokens.llm_out + seconds
        if abs(episode.sim_time_seconds - modelled) > _SECONDS:
            yield "sim_time_seconds", f"is {episode.sim_time_seconds}, calls, tokens and the world make {modelled:.8g}"


def _replies(step: Step) -> list[str]:
    """What the small policy wrote at a step, as far as that is recorded."""
    if step.decision is not None and step.decision.candidates:
        return [candidate.text for candidate in step.decision.candidates]
    return [step.action.raw_text]


def _price(settings: EvaluateSettings) -> tuple[float, float] | None:
    """What the LLM is charged at: the expert by the configuration, a provider by its list price."""
    teacher = settings.teacher
    if teacher.provider == "scripted":
        return settings.cost.llm.input, settings.cost.llm.output
    try:
        rate = teacher_rate(teacher)
    except UsageError:
        return None
    return rate.input, rate.output
