"""Router: choice of the small model or the LLM for the next step of an agent's conversation.

    router = Router.load("outputs/bundles/desk")
    decision = await router.decide(messages, tools)
    if decision.source == "small":
        messages.append(decision.turn)                # the small model's turn
    else:
        ...                                           # ask the LLM, and append its turn

Rule, score and threshold are those of `r2v serve`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from r2v.config import PolicyConfig, load
from r2v.errors import UsageError
from r2v.library.conversation import KEY_NAME, chat_request
from r2v.llm.waves import Waves
from r2v.serve.pair.pair import BUDGET, ServedPair, load_pair
from r2v.serve.pair.small import APISmall
from r2v.serve.pair.state import said_hash
from r2v.serve.sessions import Sessions
from r2v.wire.message import Message, ToolSpec


@dataclass(frozen=True, kw_only=True)
class StepDecision:
    """Author of a step, and the evidence."""

    source: Literal["small", "llm"]
    reason: str
    """score, threshold, budget, repeat, or the obstacle to the small model."""
    score: float | None
    """Score of the router; None if none was needed."""
    threshold: float
    """The LLM acts if the score reaches it."""
    turn: Message | None
    """The small model's turn if it acts."""
    features: Mapping[str, float] = field(default_factory=dict)
    """Features measured at this step."""


class Router:
    """A bundle's pair of models in this process."""

    def __init__(self, pair: ServedPair) -> None:
        self._pair, self._sessions = pair, Sessions()

    @classmethod
    def load(cls, folder: str | Path) -> Router:
        """Load a bundle. Raises InputError if it is damaged, UsageError if its small model is behind an API."""
        return cls(load_pair(Path(folder), load(), Waves(workers=1), _behind_api))

    @property
    def budgets(self) -> tuple[float, ...]:
        """Shares of LLM steps for which a threshold was placed on calibration tasks."""
        return tuple(float(name.removeprefix(BUDGET)) for name in self._pair.model_names if name.startswith(BUDGET))

    async def decide(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        tools: Sequence[ToolSpec | Mapping[str, Any]] = (),
        *,
        budget: float | None = None,
    ) -> StepDecision:
        """Decide who acts next in a conversation.

        messages, tools: objects, or dictionaries of Chat Completions. budget: the greatest share of LLM steps (default:
        the bundle's threshold). A conversation outside the bundle's domain goes to the LLM; `reason` names the
        obstacle. Raises UsageError for an invalid conversation.
        """
        request = chat_request(messages, tools)
        threshold = self._pair.threshold_of("r2v" if budget is None else f"{BUDGET}{budget:g}")
        assert threshold is not None, "both are names of the pair"
        session = self._sessions.find([], request.body.values, "chat", key=KEY_NAME)
        served = await self._pair.decide(request, session, threshold)
        session.decisions[request.conversation] = served.source
        turn = served.proposal.wire_reply.message if served.proposal is not None and served.source == "small" else None
        if turn is not None:
            session.small_turns.add(said_hash(turn.text))
        return StepDecision(
            source=served.source,
            reason=served.reason,
            score=served.score,
            threshold=threshold,
            turn=turn,
            features=dict(served.features),
        )


def _behind_api(policy: PolicyConfig) -> APISmall:
    raise UsageError(
        f"{policy.model_name}: the small model is behind an API; `r2v serve`, or Server, asks it, books its "
        "cost, and decides at POST /v1/decide"
    )
