"""The bill of an episode: its tokens held to those of the replay, its cost to the prices, its seconds to both.

The cost is made of the recorded tokens, because a bill may hold tokens that nothing here can count: of a provider's
model, of a small policy that R2V does not bring, of samples that are stored nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, fields

from r2v.config import TeacherConfig
from r2v.data.episode import Episode, Tokens
from r2v.errors import UsageError
from r2v.evaluation.settings import EvaluateSettings
from r2v.llm.providers.prices import Rate, prices_version
from r2v.llm.providers.teacher import teacher_rate
from r2v.rollout.bill import PromptCache

_USD, _SECONDS = 2e-9, 2e-6
"""What rounding leaves: costs are stored with 10 digits, seconds with 6."""


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
class Bills:
    """The prices that episodes of an evaluation are billed at."""

    settings: EvaluateSettings
    small: Charges
    large: Charges

    @classmethod
    def of(cls, settings: EvaluateSettings) -> Bills:
        """The prices of these settings."""
        return cls(settings=settings, small=Charges.of_policy(settings), large=Charges.of_llm(settings))

    def problems(
        self, episode: Episode, tokens: Tokens, seconds: float, uncounted: Set[str]
    ) -> Iterator[tuple[str, str]]:
        """(kind, what the bill should say) of an episode whose replay took these tokens and seconds, the `uncounted`
        fields of the tokens at least."""
        recorded = episode.tokens
        for name in (item.name for item in fields(Tokens)):
            said, counted = getattr(recorded, name), getattr(tokens, name)
            if said != counted if name not in uncounted else said < counted:
                yield "tokens", f"tokens.{name} is {said}, counted {counted}"
        for side in ("slm", "llm"):
            read, cached, written = (getattr(recorded, f"{side}_{kind}") for kind in ("in", "cached", "written"))
            if cached + written > read:
                yield "tokens", f"tokens.{side}_cached and {side}_written are more than {side}_in, {read}"
        yield from self._money(episode)
        llm = self.settings.cost.llm_price
        slm = llm if self.settings.policy.is_api else self.settings.cost.slm_price
        modelled = seconds + slm.seconds_per_token * (recorded.slm_out - tokens.slm_out)
        modelled += llm.seconds_per_token * (recorded.llm_out - tokens.llm_out)
        if abs(episode.sim_time_seconds - modelled) > _SECONDS:
            yield "sim_time_seconds", f"is {episode.sim_time_seconds}, calls, tokens and the world make {modelled:.8g}"

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
