"""Agents of the Secret Game, and the provider models that play them.

Agent(id="1", name="Agent1", secret="SECRET1")                     # played by the game's own model
Agent(id="2", name="Agent2", service=ClaudeSonnetAgent())          # by a model of its own, with new secrets

An agent type is a line of models, named by the model that it first was. Once that is retired, the type goes on with
the model that its provider recommends in its place (`current_agent`), and a job records what it really asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import date
from typing import Any, Literal

from r2v.errors import UsageError, nearest
from r2v.llm.providers.registry.lifecycle import lifecycle_of, living_successor, require_living, today
from r2v.llm.providers.registry.table import api_name, own_names

ProviderName = Literal["openai", "anthropic"]


@dataclass(frozen=True, kw_only=True)
class ModelAgent:
    """A provider's model and how it is asked."""

    provider: ProviderName
    model: str
    temperature: float = 1.0
    max_tokens: int = 300
    """Longest message. A model that thinks has `thinking_tokens` on top."""
    effort: str | None = None
    """How much the model reasons, in its provider's words; None: its default."""
    thinking: Literal["enabled", "disabled"] | None = None
    """Whether it thinks before it answers; None: its default."""
    thinking_tokens: int | None = None
    """Tokens for thoughts; None: the registry's."""
    usd_in: float | None = None
    """USD per million prompt tokens; None: as listed."""
    usd_out: float | None = None
    """USD per million reply tokens; None: as listed."""

    def settings(self) -> dict[str, Any]:
        """What the model is and how it is asked, without what is left to it: part of a job's identity and record."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class GPT35Agent(ModelAgent):
    """GPT-3.5-turbo, or its successor."""

    provider: ProviderName = "openai"
    model: str = "gpt-3.5-turbo"


@dataclass(frozen=True, kw_only=True)
class GPT4TurboAgent(ModelAgent):
    """GPT-4-turbo, or its successor."""

    provider: ProviderName = "openai"
    model: str = "gpt-4-turbo"


@dataclass(frozen=True, kw_only=True)
class GPT4oAgent(ModelAgent):
    """GPT-4o, or its successor."""

    provider: ProviderName = "openai"
    model: str = "gpt-4o"


@dataclass(frozen=True, kw_only=True)
class GPT4oMiniAgent(ModelAgent):
    """GPT-4o-mini, or its successor."""

    provider: ProviderName = "openai"
    model: str = "gpt-4o-mini"


@dataclass(frozen=True, kw_only=True)
class ClaudeOpusAgent(ModelAgent):
    """Claude 3 Opus, or its successor."""

    provider: ProviderName = "anthropic"
    model: str = "claude-3-opus-20240229"


@dataclass(frozen=True, kw_only=True)
class ClaudeSonnetAgent(ModelAgent):
    """Claude 3.5 Sonnet, or its successor."""

    provider: ProviderName = "anthropic"
    model: str = "claude-3-5-sonnet-20241022"


@dataclass(frozen=True, kw_only=True)
class ClaudeHaikuAgent(ModelAgent):
    """Claude 3 Haiku, or its successor."""

    provider: ProviderName = "anthropic"
    model: str = "claude-3-haiku-20240307"


AGENT_TYPES: dict[str, ModelAgent] = {
    "claude_opus": ClaudeOpusAgent(),
    "claude_sonnet": ClaudeSonnetAgent(),
    "claude_haiku": ClaudeHaikuAgent(),
    "gpt35": GPT35Agent(),
    "gpt-3.5": GPT35Agent(),
    "gpt4o_mini": GPT4oMiniAgent(),
    "gpt4o": GPT4oAgent(),
    "gpt4_turbo": GPT4TurboAgent(),
}
"""The short names that `--agent-type` takes."""
_PROVIDERS: tuple[ProviderName, ...] = ("openai", "anthropic")


def current_agent(agent: ModelAgent, day: date | None = None) -> ModelAgent:
    """The model that plays an agent on a day (None: today): of an agent type whose model is retired, its successor.
    Raises UsageError, naming the successor, where a model that was named itself is retired."""
    day = day or today()
    plain = {item.name: getattr(agent, item.name) for item in fields(ModelAgent)}
    if type(agent) is ModelAgent:
        require_living("model", agent.provider, agent.model, day)
    else:
        plain["model"] = living_successor(agent.provider, agent.model, day)
    return ModelAgent(**plain)


def lifecycle_note(agent: ModelAgent, day: date | None = None) -> str | None:
    """What whoever runs a game should know of the end of an agent's model, in one line; None: nothing."""
    day = day or today()
    current = current_agent(agent, day)
    if current.model != api_name(agent.provider, agent.model):
        retired = lifecycle_of(agent.provider, agent.model).retires
        return f"{agent.model} was retired on {retired}: {current.model} plays in its place"
    return require_living("model", agent.provider, agent.model, day)


def model_agent(name: str, day: date | None = None) -> ModelAgent:
    """An agent type, or the model of any listed name or alias (gpt-6-luna, claude-sonnet-5-5), or of a provider's
    model that nobody has listed yet (openai:gpt-7). Raises UsageError for others, and for a model that is retired on
    this day (None: today)."""
    from r2v.llm.providers.registry.listed import listed_names, listed_price

    day = day or today()
    if name in AGENT_TYPES:
        return AGENT_TYPES[name]
    provider, _, model = name.partition(":")
    if model and provider in _PROVIDERS:
        return current_agent(ModelAgent(provider=provider, model=model), day)
    for known in _PROVIDERS:
        if listed_price(known, api_name(known, name), day) is not None:
            return current_agent(ModelAgent(provider=known, model=api_name(known, name)), day)
    names = [one for known in _PROVIDERS for one in (*own_names(known), *listed_names(known))]
    raise UsageError(
        f"model {name}: neither an agent type nor a listed model; {nearest(name, [*AGENT_TYPES, *names])} (or "
        "openai:NAME or anthropic:NAME for one that is not listed yet)"
    )


@dataclass(frozen=True, kw_only=True)
class Agent:
    """A player. Without a secret of its own it gets a new one in every replicate; without a model of its own it is
    played by the game's."""

    id: str
    name: str
    secret: str | None = None
    service: ModelAgent | None = None
    persona: str = ""
    """What its system prompt begins with."""
    system_prompt: str = ""
    """Instructions in place of the game's own, with fields such as {secret}."""
    arm: str = ""
    """What the analysis calls it; empty: by its model."""
    levels: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Factor -> level, of the factors that its job varies."""
