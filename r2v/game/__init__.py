"""The AI Secret Game: agents that try to get each other's secrets, played by the batch and counted with care."""

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
