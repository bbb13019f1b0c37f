"""AI Secret Game: agents that try to get each other's secrets, played in batches and analysed statistically.

Names are loaded on first use, so that the command line can describe `r2v game` without importing its statistics.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from r2v.game.play.players import Agent as Agent
    from r2v.game.play.players import ClaudeHaikuAgent as ClaudeHaikuAgent
    from r2v.game.play.players import ClaudeOpusAgent as ClaudeOpusAgent
    from r2v.game.play.players import ClaudeSonnetAgent as ClaudeSonnetAgent
    from r2v.game.play.players import GPT4oAgent as GPT4oAgent
    from r2v.game.play.players import GPT4oMiniAgent as GPT4oMiniAgent
    from r2v.game.play.players import GPT4TurboAgent as GPT4TurboAgent
    from r2v.game.play.players import GPT35Agent as GPT35Agent
    from r2v.game.play.players import ModelAgent as ModelAgent
    from r2v.game.play.rules import GameMode as GameMode
    from r2v.game.play.rules import Payoffs as Payoffs
    from r2v.game.play.rules import Rules as Rules
    from r2v.game.service.jobs import BatchJob as BatchJob
    from r2v.game.service.jobs import BatchTask as BatchTask
    from r2v.game.service.jobs import GameService as GameService
    from r2v.game.service.services import AnthropicBatchService as AnthropicBatchService
    from r2v.game.service.services import AnthropicConversationBatchService as AnthropicConversationBatchService
    from r2v.game.service.services import BatchService as BatchService
    from r2v.game.service.services import ConversationBatchService as ConversationBatchService
    from r2v.game.service.services import OpenAIBatchService as OpenAIBatchService
    from r2v.game.service.services import OpenAIConversationBatchService as OpenAIConversationBatchService

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
    "play.rules": ("GameMode", "Payoffs", "Rules"),
    "service.jobs": ("BatchJob", "BatchTask", "GameService"),
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
