"""Dispatch of a job's requests, in batches or by direct calls, to provider models with one journal each."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from r2v.game.play.players import ModelAgent
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy
from r2v.llm.providers.factory import make_provider
from r2v.llm.providers.prices import Rate, rate_of
from r2v.llm.providers.registry.accepts import accepts_of
from r2v.llm.providers.registry.shape import RequestSettings, shape_of
from r2v.llm.providers.spending.budget import SharedBudget
from r2v.llm.types import Remote, Reply, Request

if TYPE_CHECKING:
    from r2v.llm.providers.remote import ProviderRemote

DispatchMode = Literal["batch", "batch_first", "concurrent", "auto"]
"""batch: in batches only. batch_first: in batches; a single request is called directly, and so are all others, with a
line in the log, if the provider accepts no batches. concurrent: direct calls. auto: the cheaper one including a price
of waiting, see `r2v.llm.providers.dispatch.batch_or_direct`."""


@dataclass(frozen=True, kw_only=True)
class DispatchSettings:
    """Settings for sending one job's requests to one model."""

    mode: DispatchMode
    batch_size: int = 10
    """Largest number of requests in a batch."""
    max_concurrent: int = 5
    """Largest number of concurrent direct calls."""
    conversations: int
    """Number of conversations of the job."""
    run: str
    """Job's key, recorded in its journals."""
    folder: Path
    """Folder of the journals, one per model."""
    budget: SharedBudget
    """Job's cap, shared by its models."""
    project: Path = Path()
    """Checkout whose reply cache, ledger and cap the job shares."""
    preflight: bool = True
    """True to send one cheap call before a model's first request."""
    poll_seconds: float = 5.0
    """Seconds between two polls of a batch, at least; may be short for the emulator."""

    def policy(self) -> DispatchPolicy:
        """Return the dispatch policy of these settings."""
        limits = DispatchPolicy(
            mode="auto" if self.mode == "batch_first" else self.mode,
            batch_size=self.batch_size,
            max_concurrent=self.max_concurrent,
            poll_seconds=self.poll_seconds,
            preflight=self.preflight,
        )
        if self.mode != "batch_first":
            return limits
        # With free waiting, "auto" calls directly only in the tail of the job, here the last open conversation; 1.001
        # keeps the rounded quotient from falling below one.
        one_conversation = 1.001 / min(self.conversations, self.batch_size * self.max_concurrent)
        return replace(limits, waiting_usd_per_hour=0.0, tail=min(1.0, one_conversation))


def open_provider(agent: ModelAgent, dispatch: DispatchSettings) -> Remote[Request, Reply]:
    """Return a provider's model with its own journal in the job's folder; no reply is paid for twice in the project.

    Raises UsageError for a model without a price, for a setting that it does not accept, and without a key."""
    rate = rate_of_agent(agent)
    name = f"{agent.provider}_{agent.model}_t{agent.temperature:g}_m{agent.max_tokens}"
    name += "".join(f"_{word}" for word in (agent.effort, agent.thinking) if word)
    return _remote(agent, dispatch, rate, dispatch.folder / re.sub(r"[^\w.-]", "-", name), dispatch.budget)


def _remote(
    agent: ModelAgent, dispatch: DispatchSettings, rate: Rate, folder: Path, budget: SharedBudget | None
) -> ProviderRemote:
    """Return the provider behind a journal. budget: None to fetch a dead process's batches, which costs nothing."""
    from r2v.llm.providers.project_session import ProjectSession
    from r2v.llm.providers.remote import ProviderRemote

    async def adopt(other: Path) -> None:
        await _remote(agent, dispatch, rate, other, None).collect_batches()

    session = ProjectSession(
        dispatch.project,
        payer=dispatch.folder,
        scope={"provider": agent.provider, "model": rate.model},
        adopt=None if budget is None else adopt,
        budget=budget,
        numbered=False,
    )
    scope = {"game": dispatch.run, **agent.settings()}
    provider = make_provider(agent.provider, rate)
    return ProviderRemote(provider, rate, folder, dispatch.policy(), scope=scope, session=session)


def rate_of_agent(agent: ModelAgent) -> Rate:
    """Return the price of an agent's model and the shape of its requests. Raises UsageError for a model without a price
    and for a setting that it does not accept."""
    keys = "usd_in and usd_out of its agent (--overrides usd_in, usd_out)"
    rate = rate_of(agent.provider, agent.model, agent.usd_in, agent.usd_out, keys=keys, name="model")
    settings = RequestSettings(
        effort=agent.effort,
        thinking=agent.thinking,
        thinking_tokens=agent.thinking_tokens,
        temperature=agent.temperature,
        prefix="",
    )
    return replace(rate, shape=shape_of(accepts_of(agent.provider, agent.model), settings, model=agent.model))
