"""Conversation: the messages of a trajectory of any format, and their conversion to and from an episode.

Each message of the assistant is one step, for any number of tool calls and thoughts. `Action.raw_text`, the training
target of a policy, is the text of the message and one line `{"tool": name, ...arguments}` per call; the step's
observation is all messages since the previous step, in order. The goal is the user's first message. The messages
themselves (call ids, several results, hidden thoughts) are kept in `Episode.extra`, so that the conversion back is
exact.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from r2v.data.action import parse_action
from r2v.data.episode import (
    COPIED,
    IMPORTED,
    Action,
    Episode,
    EpisodeMetadata,
    Observation,
    Step,
    StepLabel,
    Tokens,
    to_dict,
    to_line,
)
from r2v.data.interchange.content import read_messages, write_message
from r2v.data.interchange.fields import BadRecord
from r2v.data.schema import SchemaError, from_dict
from r2v.wire import chat
from r2v.wire.exchange import WireRequest
from r2v.wire.message import Message, RefusalPart, TextPart, ToolCall, ToolResult


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Message of the assistant (`said`) and the messages since its last one (`before`)."""

    said: Message
    before: tuple[Message, ...] = ()
    copied: bool = False

    @property
    def observation(self) -> str:
        """Text of all messages in `before`."""
        return "\n\n".join(message.text for message in self.before)

    @property
    def action(self) -> Action:
        """Message as an action, parsed if it has exactly one call."""
        words, calls = words_of(self.said), self.said.calls
        text = "\n".join([*([words] if words else []), *(call.line for call in calls)])
        if len(calls) == 1:
            return replace(parse_action(calls[0].line), raw_text=text)
        return Action(raw_text=text)


def words_of(message: Message) -> str:
    """Return the text of a message without its calls and thoughts."""
    return "\n".join(part.text for part in message.parts if isinstance(part, (TextPart, RefusalPart)) and part.text)


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """One trajectory. `messages`: as read by `content`; `copied`: indices of messages that the log repeats, or that no
    model wrote, which are context only."""

    messages: tuple[Message, ...]
    copied: frozenset[int] = frozenset()
    tools: tuple[dict[str, Any], ...] = ()
    """Definitions in the form of Chat Completions; tools that are no functions are unchanged."""
    task_id: str | None = None
    model: str | None = None
    outcome: bool | None = None
    """Success claimed by the log; None if not stated."""
    cost: float = 0.0
    usd: tuple[float | None, ...] = ()
    """Billed USD of each turn; None for a turn without a bill in the log."""
    tokens: Tokens = field(default_factory=Tokens)

    @property
    def opening(self) -> int | None:
        """Index of the goal, the user's first message; None if a turn comes first."""
        for index, message in enumerate(self.messages):
            if message.role == "user":
                return index
            if _acts(message):
                break
        return None

    @property
    def goal(self) -> str:
        """Text of the user's first message; empty if the assistant speaks first."""
        return "" if self.opening is None else self.messages[self.opening].text

    @property
    def system(self) -> str | None:
        """System prompt: text of all system messages before the goal; None without any."""
        texts = [message.text for message in self.messages[: self.opening or 0] if message.role == "system"]
        return "\n\n".join(texts) if texts else None

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Messages of the assistant with text or calls; a thought alone is no step."""
        turns: list[Turn] = []
        before: list[Message] = []
        opening = -1 if self.opening is None else self.opening
        for index, message in enumerate(self.messages):
            if _acts(message):
                turns.append(Turn(said=message, before=tuple(before), copied=index in self.copied))
                before = []
            elif message.role != "assistant" and index > opening:
                before.append(message)
        return tuple(turns)

    @property
    def places(self) -> tuple[int, ...]:
        """Indices of the turns among the messages."""
        return tuple(index for index, message in enumerate(self.messages) if _acts(message))


def _acts(message: Message) -> bool:
    return message.role == "assistant" and bool(message.calls or words_of(message))


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Original log of a trajectory, kept in `Episode.extra`."""

    format: str
    source: str
    outcome: bool | None = None
    messages: tuple[dict[str, Any], ...] = ()
    copied: tuple[int, ...] = ()
    usd: tuple[float | None, ...] = ()
    """As in `Conversation`."""


def to_episode(talk: Conversation, *, task_id: str, seed: int, benchmark: str, format: str, source: str) -> Episode:
    """Return the conversation as an episode that was not executed here. `seed` distinguishes trajectories of one task.

    Raise BadRecord without a turn to train on, or for text that cannot be written.
    """
    turns = talk.turns
    if not turns:
        raise BadRecord("no turn of the assistant")
    if all(turn.copied for turn in turns):
        raise BadRecord("every turn of the assistant is copied from elsewhere, or no model's")
    if not talk.goal.strip():
        raise BadRecord("no words of the user before the assistant's first turn")
    extra: dict[str, Any] = {} if talk.system is None else {"system": talk.system}
    if talk.tools:
        extra["tools"] = list(talk.tools)
    origin = Origin(
        format=format,
        source=source,
        outcome=talk.outcome,
        messages=tuple(map(write_message, talk.messages)),
        copied=tuple(sorted(talk.copied)),
        usd=talk.usd,
    )
    episode = Episode(
        episode_id=f"{task_id}/s{seed}",
        metadata=EpisodeMetadata(
            task_id=task_id,
            goal=talk.goal,
            benchmark=benchmark,
            split="train",
            seed=seed,
            teacher_model=talk.model,
            teacher_provider=IMPORTED,
            extra=extra,
        ),
        steps=tuple(_step(index, turn) for index, turn in enumerate(turns)),
        success=False,
        total_cost=talk.cost,
        tokens=talk.tokens,
        extra={IMPORTED: to_dict(origin)},
    )
    try:
        to_line(episode).encode()
    except ValueError as error:
        raise BadRecord(f"text that cannot be written ({' '.join(str(error).split())[:120]})") from error
    return episode


def _step(index: int, turn: Turn) -> Step:
    return Step(
        step_idx=index,
        observation=Observation(raw_text=turn.observation),
        action=turn.action,
        label=StepLabel(label_source=COPIED) if turn.copied else None,
    )


def of_episode(episode: Episode) -> Conversation:
    """Return the episode as a conversation: as logged, or from its steps if it was played here or altered since."""
    about = episode.metadata
    talk = Conversation(
        messages=_played(episode),
        tools=tuple(about.extra.get("tools", ())),
        task_id=about.task_id,
        model=about.teacher_model,
        outcome=episode.success if episode.executed else episode.claims_success,
        cost=episode.total_cost,
        tokens=episode.tokens,
    )
    return talk if episode.executed else _logged(episode, talk)


def request_of(episode: Episode) -> WireRequest:
    """Return the conversation and the tools of an episode as a request. Raise NotThisFormat if it cannot be one."""
    talk = of_episode(episode)
    messages = [write_message(message) for message in talk.messages]
    return chat.read_request({"model": talk.model or "", "messages": messages, "tools": list(talk.tools)})


def _logged(episode: Episode, talk: Conversation) -> Conversation:
    """Return the logged conversation of an imported episode if its steps are still those of the log, else `talk`: those
    of a perturbed variant are not."""
    try:
        origin = from_dict(Origin, episode.extra[IMPORTED])
        whole = replace(talk, messages=read_messages(origin.messages), copied=frozenset(origin.copied))
    except (SchemaError, BadRecord):
        return talk
    same = [(turn.observation, turn.action.raw_text) for turn in whole.turns] == [
        (step.observation.raw_text, step.action.raw_text) for step in episode.steps
    ]
    return whole if same else talk


def _played(episode: Episode) -> tuple[Message, ...]:
    """Return the steps as messages; a call's id is its step's index, and the next observation is its result."""
    system = episode.metadata.extra.get("system")
    messages = [Message(role="system", content=system)] if isinstance(system, str) else []
    messages.append(Message(role="user", content=episode.metadata.goal))
    answered: str | None = None
    for index, step in enumerate(episode.steps):
        seen = step.observation.raw_text
        if answered is not None:
            messages.append(Message(role="tool", content=(ToolResult(call_id=answered, content=seen),)))
        elif seen or index:
            messages.append(Message(role="user", content=seen))
        action = parse_action(step.action.raw_text)
        answered = f"call_{index}" if action.action_type else None
        arguments = json.dumps(action.arguments, ensure_ascii=False, separators=(",", ":"))
        call = ToolCall(name=action.action_type, arguments=arguments, id=answered or "")
        messages.append(
            Message(role="assistant", content=(call,) if answered else (TextPart(text=step.action.raw_text),))
        )
    return tuple(messages)
