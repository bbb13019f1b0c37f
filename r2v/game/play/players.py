"""Agents of the Secret Game and the provider models that play them.

Agent(id="1", name="Agent1", secret="SECRET1")                     # played by the game's own model
Agent(id="2", name="Agent2", service=ClaudeSonnetAgent())          # played by its own model, with new secrets

An agent type is a line of models, named by its first model. Once that is retired, the type uses the successor that its
provider recommends (`current_agent`), and a job records the model actually called.
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
    """A provider's model and its request settings."""

    provider: ProviderName
    model: str
    temperature: float = 1.0
    max_tokens: int = 300
    """Longest message in tokens. A thinking model has `thinking_tokens` in addition."""
    effort: str | None = None
    """Reasoning effort in the provider's terms; None: its default."""
    thinking: Literal["enabled", "disabled"] | None = None
    """Thinking before the answer; None: the model's default."""
    thinking_tokens: int | None = None
    """Tokens for thoughts; None: the registry's value."""
    usd_in: float | None = None
    """USD per million prompt tokens; None: as listed."""
    usd_out: float | None = None
    """USD per million reply tokens; None: as listed."""

    def settings(self) -> dict[str, Any]:
        """Return the model and its explicit settings, which are part of a job's identity and record."""
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
"""Agent type by the short names of `--agent-type`."""
_PROVIDERS: tuple[ProviderName, ...] = ("openai", "anthropic")


def current_agent(agent: ModelAgent, day: date | None = None) -> ModelAgent:
    """Return the model that plays an agent on a day (None: today); for an agent type with a retired model, its
    successor. Raises UsageError, naming the successor, for a retired model named directly."""
    day = day or today()
    plain = {item.name: getattr(agent, item.name) for item in fields(ModelAgent)}
    if type(agent) is ModelAgent:
        require_living("model", agent.provider, agent.model, day)
    else:
        plain["model"] = living_successor(agent.provider, agent.model, day)
    return ModelAgent(**plain)


def lifecycle_note(agent: ModelAgent, day: date | None = None) -> str | None:
    """Return a line about the retirement of an agent's model, None without one."""
    day = day or today()
    current = current_agent(agent, day)
    if current.model != api_name(agent.provider, agent.model):
        retired = lifecycle_of(agent.provider, agent.model).retires
        return f"{agent.model} was retired on {retired}: {current.model} plays in its place"
    return require_living("model", agent.provider, agent.model, day)


def model_agent(name: str, day: date | None = None) -> ModelAgent:
    """Return the agent of a type, of a listed model name or alias (gpt-6-luna, claude-sonnet-5-5), or of an unlisted
    model with its provider (openai:gpt-7). Raises UsageError for any other name, and for a model retired on this day
    (None: today)."""
    from r2v.llm.providers.registry.listed import listed_names, listed_price

    day = day or today()
    if name in AGENT_TYPES:
        return AGENT_TYPES[name]
    provider, _, model = name.partition(":")
    if model and provider in _PROVIDERS:
        return current_agent(ModelAgent(provider=provider, model=model), day)
    for listing in _PROVIDERS:
        if listed_price(listing, api_name(listing, name), day) is not None:
            return current_agent(ModelAgent(provider=listing, model=api_name(listing, name)), day)
    names = [listed for listing in _PROVIDERS for listed in (*own_names(listing), *listed_names(listing))]
    raise UsageError(
        f"model {name}: neither an agent type nor a listed model; {nearest(name, [*AGENT_TYPES, *names])} (or "
        "openai:NAME or anthropic:NAME for one that is not listed yet)"
    )


@dataclass(frozen=True, kw_only=True)
class Agent:
    """A player. Without a secret it gets a new one in every replicate; without a model it is played by the game's."""

    id: str
    name: str
    secret: str | None = None
    service: ModelAgent | None = None
    persona: str = ""
    """Beginning of its system prompt."""
    system_prompt: str = ""
    """Instructions in place of the game's own, with fields such as {secret}."""
    arm: str = ""
    """Label in the analysis; empty: the model's name."""
    levels: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Factor -> level, for the factors that its job varies."""
