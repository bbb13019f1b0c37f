"""Agents of the Secret Game, and the provider models that play them.

Agent(id="1", name="Agent1", secret="SECRET1")                     # num_messages for by the game's own model
Agent(id="2", name="Agent2", service=ClaudeSonnetAgent())          # by a model of its own, with new secrets
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from r2v.errors import UsageError, nearest

ProviderName = Literal["openai", "anthropic"]


@dataclass(frozen=True, kw_only=True)
class ModelAgent:
    """A provider's model and how it is sampled."""

    provider: ProviderName
    model: str
    temperature: float = 1.0
    max_tokens: int = 300
    """Longest message."""


@dataclass(frozen=True, kw_only=True)
class GPT35Agent(ModelAgent):
    """GPT-3.5-turbo."""

    provider: ProviderName = "openai"
    model: str = "gpt-3.5-turbo"


@dataclass(frozen=True, kw_only=True)
class GPT4TurboAgent(ModelAgent):
    """GPT-4-turbo."""

    provider: ProviderName = "openai"
    model: str = "gpt-4-turbo"


@dataclass(frozen=True, kw_only=True)
class GPT4oAgent(ModelAgent):
    """GPT-4o."""

    provider: ProviderName = "openai"
    model: str = "gpt-4o"


@dataclass(frozen=True, kw_only=True)
class GPT4oMiniAgent(ModelAgent):
    """GPT-4o-mini."""

    provider: ProviderName = "openai"
    model: str = "gpt-4o-mini"


@dataclass(frozen=True, kw_only=True)
class ClaudeOpusAgent(ModelAgent):
    """Claude 3 Opus."""

    provider: ProviderName = "anthropic"
    model: str = "claude-3-opus-20240229"


@dataclass(frozen=True, kw_only=True)
class ClaudeSonnetAgent(ModelAgent):
    """Claude 3.5 Sonnet."""

    provider: ProviderName = "anthropic"
    model: str = "claude-3-5-sonnet-20241022"


@dataclass(frozen=True, kw_only=True)
class ClaudeHaikuAgent(ModelAgent):
    """Claude 3 Haiku."""

    provider: ProviderName = "anthropic"
    model: str = "claude-3-haiku-20240307"


AGENT_TYPES: dict[str, ModelAgent] = {
    "claude_opus": ClaudeOpusAgent(),
    "claude_sonnet": ClaudeSonnetAgent(),
    "claude_haiku": ClaudeHaikuAgent(),
    "gpt35": GPT35Agent(),
    "gpt4o_mini": GPT4oMiniAgent(),
    "gpt4o": GPT4oAgent(),
    "gpt4_turbo": GPT4TurboAgent(),
}
"""The short names that `--agent-type` takes."""


def model_agent(name: str) -> ModelAgent:
    """The model of an agent type, or of any name or alias in the price table (gpt-3.5, claude-sonnet-4-5). Raises
    UsageError."""
    from r2v.llm.providers.prices import price_table

    if name in AGENT_TYPES:
        return AGENT_TYPES[name]
    rows = price_table()["models"]
    for model, row in rows.items():
        if name in (model, *row.get("aliases", ()), *row.get("snapshots", ())):
            return ModelAgent(provider=row["provider"], model=name if name in row.get("snapshots", ()) else model)
    raise UsageError(
        f"model {name}: neither an agent type nor in the price table; {nearest(name, [*AGENT_TYPES, *rows])}"
    )


@dataclass(frozen=True, kw_only=True)
class Agent:
    """A player. Without a secret of its own it gets a new one in every replicate; without a model of its own it is
    played by the game's."""

    id: str
    name: str
    secret: str | None = None
    service: ModelAgent | None = None
