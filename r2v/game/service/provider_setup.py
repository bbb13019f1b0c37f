"""How a job's requests travel, and the provider's model at the other end."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from r2v.game.play.players import ModelAgent
from r2v.llm.providers.dispatch.dispatch_policy import Plan
from r2v.llm.providers.prices import rate_of
from r2v.llm.providers.spending.budget import Purse
from r2v.llm.types import Remote, Reply, Request

TravelMode = Literal["batch", "batch_first", "concurrent", "auto"]
"""batch: in batches, or not at all. batch_first: in batches; a request that is alone is called directly, and so is
the rest, with a word about it, when the provider takes no batches. concurrent: direct calls. auto: whichever is
worth it, see `r2v.llm.providers.dispatch.batch_or_direct`."""


@dataclass(frozen=True, kw_only=True)
class Travel:
    """How one job's requests go to one model."""

    mode: TravelMode
    batch_size: int
    """Requests in one batch, at most."""
    max_concurrent: int
    """Direct calls at the same time, at most."""
    conversations: int
    """Conversations of the job."""
    run: str
    """The job's key: what the journal belongs to."""
    folder: Path
    """Where the journals of all its models lie."""
    purse: Purse
    """The job's cap, which all its models share."""
    poll_seconds: float = 5.0
    """First look at a batch; a rehearsal against the emulator may look sooner."""

    def plan(self) -> Plan:
        """The same for a provider's remote."""
        limits = Plan(
            mode="auto" if self.mode == "batch_first" else self.mode,
            batch_size=self.batch_size,
            max_concurrent=self.max_concurrent,
            poll_seconds=self.poll_seconds,
        )
        if self.mode != "batch_first":
            return limits
        # waiting costs nothing here, so all that "auto" still calls directly is the one request that is open
        alone = 1.001 / min(self.conversations, self.batch_size * self.max_concurrent)
        return replace(limits, hour_usd=0.0, tail=min(1.0, alone))


def open_provider(agent: ModelAgent, travel: Travel) -> Remote[Request, Reply]:
    """A provider's model, with a journal of its own in the job's folder: what was answered once is not paid again.
    Raises UsageError for a model without a price, or where the provider's key is not in the environment."""
    from r2v.llm.providers.anthropic import Anthropic
    from r2v.llm.providers.openai import OpenAI
    from r2v.llm.providers.remote import ProviderRemote

    rate = rate_of(agent.provider, agent.model)
    provider = OpenAI(rate) if agent.provider == "openai" else Anthropic(rate)
    name = re.sub(r"[^\w.-]", "-", f"{agent.provider}_{agent.model}_t{agent.temperature:g}_m{agent.max_tokens}")
    return ProviderRemote(
        provider,
        rate,
        travel.folder / name,
        travel.plan(),
        scope={"game": travel.run, **asdict(agent)},
        purse=travel.purse,
    )
