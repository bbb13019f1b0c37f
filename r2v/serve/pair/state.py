"""State of a served step: the task, its steps and their authors, read from a request.

    view = served_view(request, session, domain, inference)       # a StepView, as in an evaluation
    view.actions, view.llm_steps

It is read from the messages alone, so that a restart, or a client that compacts its conversation, loses nothing. The
author of an earlier turn is R2V's small model if the turn holds a call id of R2V or a text of the small model in this
session; any other turn counts as the LLM's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from r2v.config import InferenceConfig
from r2v.data.interchange.conversation import Conversation, Turn
from r2v.data.interchange.fields import BadRecord
from r2v.data.interchange.litellm import asked
from r2v.policy.prompt_encoder import build_messages
from r2v.rollout.actors import StepView
from r2v.serve.bundle.domain import Domain
from r2v.serve.sessions import AgentSession

CALL_ID = "r2v_"
"""Prefix of the ids of the small model's calls."""


class NotReadable(Exception):
    """The conversation is no sequence of steps; the reason is logged."""


def served_view(
    values: Mapping[str, Any], session: AgentSession, domain: Domain, inference: InferenceConfig
) -> StepView:
    """Return the next step of a request's conversation. values: its body. Raises NotReadable."""
    try:
        talk = Conversation(messages=asked(values))
        turns = talk.turns
    except BadRecord as error:
        raise NotReadable(str(error)) from None
    if not talk.goal.strip():
        raise NotReadable("no words of the user before the first turn")
    after = _after(talk)
    if turns and not after:
        raise NotReadable("nothing came after the last turn")
    observations = (*(turn.observation for turn in turns), after or "")
    goal = talk.goal
    if not observations[0] and domain.is_native(talk.messages):
        goal, _, page = goal.partition("\n\n")  # R2V's own agents append the first page to the goal
        observations = (page, *observations[1:])
    actions = tuple(turn.action.raw_text for turn in turns)
    llm_steps = tuple(step for step, turn in enumerate(turns) if not _is_small(turn, session))
    return StepView(
        task_id=session.name,
        seed=0,
        step=len(actions),
        max_steps=inference.max_steps,
        goal=goal,
        observations=observations,
        actions=actions,
        messages=build_messages(goal, observations, actions),
        tools=domain.specs,
        llm_calls=len(llm_steps),
        llm_steps=llm_steps,
    )


def _after(talk: Conversation) -> str:
    """Return the text of the messages after the last turn, or after the goal if there is no turn."""
    rest = talk.messages
    for index in range(len(rest) - 1, -1, -1):
        if rest[index].role == "assistant" or index == talk.opening:
            return "\n\n".join(message.text for message in rest[index + 1 :])
    return ""


def _is_small(turn: Turn, session: AgentSession) -> bool:
    if any(call.id.startswith(CALL_ID) for call in turn.said.calls):
        return True
    return not turn.said.calls and said_hash(turn.action.raw_text) in session.small_turns


def said_hash(text: str) -> str:
    """Return the hash by which a turn's text is recognised in later requests; clients change its spacing."""
    return hashlib.blake2b(" ".join(text.split()).encode(errors="replace"), digest_size=8).hexdigest()
