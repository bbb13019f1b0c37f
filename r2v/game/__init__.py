"""The AI Secret Game: agents that try to get each other's secrets, played by the batch and counted with care.

Names are loaded when they are asked for, so that the command line can describe `r2v game` without its statistics.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from r2v.game.play.players import (
        Agent,
        ClaudeHaikuAgent,
        ClaudeOpusAgent,
        ClaudeSonnetAgent,
        GPT4oAgent,
        GPT4oMiniAgent,
        GPT4TurboAgent,
        GPT35Agent,
        ModelAgent,
    )
    from r2v.game.play.rules import GameMode, Payoffs, Rules
    from r2v.game.service.jobs import BatchJob, BatchTask, GameService
    from r2v.game.service.services import (
        AnthropicBatchService,
        AnthropicConversationBatchService,
        BatchService,
        ConversationBatchService,
        OpenAIBatchService,
        OpenAIConversationBatchService,
    )

__all__ = [
    "Agent",
    "AnthropicBatchService",
    "AnthropicConversationBatchService",
    "BatchJob",
    "BatchService",
    "BatchTask",
    "ClaudeHaikuAgent",
    "ClaudeOpusAgent",
    "ClaudeSonnetAgent",
    "ConversationBatchService",
    "GPT35Agent",
    "GPT4TurboAgent",
    "GPT4oAgent",
    "GPT4oMiniAgent",
    "GameMode",
    "GameService",
    "ModelAgent",
    "OpenAIBatchService",
    "OpenAIConversationBatchService",
    "Payoffs",
    "Rules",
]

_MODULES = {
    "play.players": (
        "Agent",
        "ClaudeHaikuAgent",
        "ClaudeOpusAgent",
        "ClaudeSonnetAgent",
        "GPT4oAgent",
        "GPT4oMiniAgent",
        "GPT4TurboAgent",
        "GPT35Agent",
        "ModelAgent",
    ),
    "play.rules": (
        "GameMode",
        "Payoffs",
        "Rules",
    ),
    "service.jobs": (
        "BatchJob",
        "BatchTask",
        "GameService",
    ),
    "service.services": (
        "AnthropicBatchService",
        "AnthropicConversationBatchService",
        "BatchService",
        "ConversationBatchService",
        "OpenAIBatchService",
        "OpenAIConversationBatchService",
    ),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
