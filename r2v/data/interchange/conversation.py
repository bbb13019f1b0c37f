"""Conversation: the messages of a trajectory, whatever its format, and how they lie in an episode.

An assistant's message is one step, however many tools it calls and whatever it thinks aloud. `Action.raw_text`, which
is what a policy learns to say, is the text of the message and then each call as a line `{"tool": name, ...arguments}`;
the step's observation is all that came since the step before, in its order. The goal is the first thing that the user
said. The messages themselves (call ids, several results, hidden thoughts) are kept in `Episode.extra`, so that the way
back gives the same ones.
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
    """An assistant's message and those that came since its last one."""

    said: Message
    before: tuple[Message, ...] = ()
    copied: bool = False

    @property
    def observation(self) -> str:
        """All that came before as one text."""
        return "\n\n".join(message.text for message in self.before)

    @property
    def action(self) -> Action:
        """The message as an action; its parsed form is that of its only call."""
        words, calls = words_of(self.said), self.said.calls
        text = "\n".join([*([words] if words else []), *(call.line for call in calls)])
        if len(calls) == 1:
            return replace(parse_action(calls[0].line), raw_text=text)
        return Action(raw_text=text)


def words_of(message: Message) -> str:
    """Return what a message says beside its calls and thoughts."""
    return "\n".join(part.text for part in message.parts if isinstance(part, (TextPart, RefusalPart)) and part.text)


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """One trajectory. `messages` are as `content` reads them; those whose index is in `copied` are context that the
    log repeats, or no model's."""

    messages: tuple[Message, ...]
    copied: frozenset[int] = frozenset()
    tools: tuple[dict[str, Any], ...] = ()
    """Definitions in the form of Chat Completions; of a kind that is no function, as they came."""
    task_id: str | None = None
    model: str | None = None
    outcome: bool | None = None
    """True if its log says that it succeeded; None where it says nothing."""
    cost: float = 0.0
    usd: tuple[float | None, ...] = ()
    """USD of each turn as billed; None for a turn of which the log does not tell."""
    tokens: Tokens = field(default_factory=Tokens)

    @property
    def opening(self) -> int | None:
        """Index of the goal: of the user's first message, where no turn stands before it."""
        for index, message in enumerate(self.messages):
            if message.role == "user":
                return index
            if _acts(message):
                break
        return None

    @property
    def goal(self) -> str:
        """The first words of the user; empty where an assistant speaks first."""
        return "" if self.opening is None else self.messages[self.opening].text

    @property
    def system(self) -> str | None:
        """The system prompt: all that the system says before the goal."""
        said = [message.text for message in self.messages[: self.opening or 0] if message.role == "system"]
        return "\n\n".join(said) if said else None

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The assistant's messages that say or call something; a thought alone is no step."""
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
        """The indices of these turns among the messages."""
        return tuple(index for index, message in enumerate(self.messages) if _acts(message))


def _acts(message: Message) -> bool:
    return message.role == "assistant" and bool(message.calls or words_of(message))


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What `Episode.extra` keeps of how a trajectory was logged."""

    format: str
    source: str
    outcome: bool | None = None
    messages: tuple[dict[str, Any], ...] = ()
    copied: tuple[int, ...] = ()
    usd: tuple[float | None, ...] = ()
    """As of a conversation."""


def to_episode(talk: Conversation, *, task_id: str, seed: int, benchmark: str, format: str, source: str) -> Episode:
    """The conversation as an episode that was not executed here. `seed` tells trajectories of one task apart.

    Raises BadRecord where there is no turn to learn from, or text that cannot be written.
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
    """The episode as a conversation: as it was logged, or from its steps where it was played here or altered since."""
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
    """Return the conversation and the tools of an episode as a request. Raises NotThisFormat."""
    talk = of_episode(episode)
    messages = [write_message(message) for message in talk.messages]
    return chat.read_request({"model": talk.model or "", "messages": messages, "tools": list(talk.tools)})


def _logged(episode: Episode, talk: Conversation) -> Conversation:
    """The messages of an imported episode, where its steps are still those of its log: a twin's are not."""
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
    """The steps as messages; a call's id is that of its step, and the page that follows is its result."""
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
