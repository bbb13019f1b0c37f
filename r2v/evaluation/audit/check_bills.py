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

    usd: tuple[float, float] | None
    """Per million tokens, prompt and reply; None where nobody knows them."""
    surcharge: tuple[float, float] = (1.0, 1.0)
    """Factors on them of requests that are so long that they cost more."""
    surcharge_above: float = float("inf")
    """Prompt tokens. How long each prompt was is not recorded."""
    cache: PromptCache | None = None
    """The prompt cache of its endpoint."""

    @classmethod
    def of_endpoint(cls, asked: TeacherConfig, settings: EvaluateSettings) -> Charges:
        """Of a provider's model, by its list price."""
        try:
            rate: Rate = teacher_rate(asked)
        except UsageError:
            return cls(usd=None)
        above = float("inf") if rate.surcharge_above is None else rate.surcharge_above
        return cls(
            usd=(rate.input, rate.output),
            surcharge=(rate.surcharge_in, rate.surcharge_out),
            surcharge_above=above,
            cache=PromptCache.of(rate.input, settings.cost, rate.cached, rate.write_5m),
        )

    def bounds(self, read: int, wrote: int) -> tuple[float, float]:
        """The least and the most USD of these tokens at list prices."""
        usd_in, usd_out = self.usd or (0.0, 0.0)
        least = (read * usd_in + wrote * usd_out) / 1e6
        if read <= self.surcharge_above:
            return least, least
        return least, (read * usd_in * self.surcharge[0] + wrote * usd_out * self.surcharge[1]) / 1e6


@dataclass(frozen=True, kw_only=True)
class Bills:
    """The prices that episodes of an evaluation are billed at."""

    settings: EvaluateSettings
    small: Charges
    large: Charges

    @classmethod
    def of(cls, settings: EvaluateSettings) -> Bills:
        """The prices of these settings: a provider's model by its list price, others by the configuration."""
        cost, asked = settings.cost, settings.teacher
        small = Charges(usd=(cost.slm.input, cost.slm.output))
        large = Charges(usd=(cost.llm.input, cost.llm.output), cache=PromptCache.of(cost.llm.input, cost))
        if settings.policy.is_api:
            small = Charges.of_endpoint(settings.policy.as_endpoint(asked), settings)
        if asked.provider != "scripted":
            large = Charges.of_endpoint(asked, settings)
        return cls(settings=settings, small=small, large=large)

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
        yield from self._money(episode)
        llm = self.settings.cost.llm_price
        slm = llm if self.settings.policy.is_api else self.settings.cost.slm_price
        modelled = seconds + slm.seconds_per_token * (recorded.slm_out - tokens.slm_out)
        modelled += llm.seconds_per_token * (recorded.llm_out - tokens.llm_out)
        if abs(episode.sim_time_seconds - modelled) > _SECONDS:
            yield "sim_time_seconds", f"is {episode.sim_time_seconds}, calls, tokens and the world make {modelled:.8g}"

    def _money(self, episode: Episode) -> Iterator[tuple[str, str]]:
        """Without a price of every model that was asked, at least what the others cost."""
        tokens, unknown, saved = episode.tokens, False, 0.0
        least = most = tokens.verifier_in * self.settings.cost.slm.input / 1e6
        for side, charges in (("slm", self.small), ("llm", self.large)):
            read, wrote, *cached = (getattr(tokens, f"{side}_{kind}") for kind in ("in", "out", "cached", "written"))
            unknown = unknown or (charges.usd is None and read + wrote > 0)
            low, high = charges.bounds(read, wrote)
            least, most = least + low, most + high
            saved += 0.0 if charges.cache is None else charges.cache.saved(*cached)
        most = float("inf") if unknown else most
        for name, less in (("total_cost", 0.0), ("cached_cost", saved)):
            said = getattr(episode, name)
            if said is None or not least - less - _USD <= said <= most - less + _USD:
                yield (
                    name,
                    f"is {said}, its tokens cost {least - less:.10g} at prices of {prices_version()} or config.yaml",
                )
