"""Prompt encoder: conversations to token ids that fit the context length.

A context is `(system?, user = goal, tool = observation 0, assistant = action 0, ..., tool = newest observation)`.
`Encoder` renders it with the tokenizer's own chat template (`r2v.policy.chat_template`) and, where it is too
long, elides old observations, half of the context at once (`r2v.policy.half_elision`), and the middle of an
observation that is too long itself. The goal, and the action that follows, are never cut. Training, acting and the
verifier make their prompts here, so that they are the same.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock
from typing import Any

from r2v.config import PolicyConfig
from r2v.errors import InputError, UsageError
from r2v.policy.chat_template import ChatTemplate, probes, say_once, usable_tokenizer
from r2v.policy.half_elision import ELIDED, HalfElision, without_middle
from r2v.wire.message import Message, ToolSpec

__all__ = ["ELIDED", "Encoder", "Prompt", "build_messages"]

_REMEMBERED = 1 << 21
"""Tokens of messages in the cache, about 80 MB."""
_TOOLS_SHARE = 2
"""Tools are in the prompt if they take at most one part in so many of it."""
_CHARACTERS = 3
"""Characters of each end of a long text that are tokenised, for each token of the longest prompt."""
_SLACK = 16
"""Tokens dropped where a text was cut, since they may differ from those of the whole."""
_SIZES = 1 << 16
_SHORT = 2048
"""Characters below which looking up a segment costs less than hashing its text."""


def build_messages(
    goal: str, observations: Sequence[str], actions: Sequence[str], system: str | None = None
) -> tuple[Message, ...]:
    """Return the conversation so far, of one more observation than actions; raises ValueError otherwise. An empty first
    observation, of a world that shows nothing at first or a log that begins with the user's words alone, has no
    turn."""
    turns = [] if system is None else [Message(role="system", content=system)]
    turns.append(Message(role="user", content=goal))
    for index, (observation, action) in enumerate(zip(observations, (*actions, None), strict=True)):
        if observation or index:
            turns.append(Message(role="tool", content=observation))
        if action is not None:
            turns.append(Message(role="assistant", content=action))
    return tuple(turns)


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids up to the start of the action. `elided`: True if a part of the context was left out."""

    ids: tuple[int, ...]
    elided: bool


class Encoder:
    """Messages to token ids, at most `max_seq_len - reserve` of them; `reserve` is kept for the action.

    Where the template only concatenates messages (checked here on probes), each message is tokenised once, the last
    `remember` tokens are cached, and elisions are counted exactly. Where a message's text depends on others, the whole
    conversation is rendered anew and elisions are estimated. `tools` are in every prompt. Raises UsageError where the
    tokenizer has no chat template or no end-of-sequence token, or a template that loses texts.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        max_seq_len: int,
        reserve: int,
        tools: Sequence[ToolSpec] = (),
        remember: int = _REMEMBERED,
        enable_thinking: bool = False,
    ) -> None:
        if not 0 < reserve < max_seq_len:
            raise UsageError(
                f"policy.max_seq_len {max_seq_len}: must be above the {reserve} tokens kept for the "
                "action (inference.max_new_tokens)"
            )
        self.tokenizer, self.max_seq_len, self.reserve = tokenizer, max_seq_len, reserve
        with usable_tokenizer(tokenizer):
            self.template = self._affordable(tools, enable_thinking)
            self.template.log_findings()
            self._segments = Segments(self.template, max_seq_len, remember)
            self.concatenative = self._segments.concatenate()

    @classmethod
    def of(
        cls,
        tokenizer: Any,
        policy: PolicyConfig,
        reserve: int,
        tools: Sequence[ToolSpec] = (),
        remember: int = _REMEMBERED,
    ) -> Encoder:
        """Return the encoder of a configured policy in a world of these tools; policy.tools=none leaves them out."""
        return cls(
            tokenizer,
            max_seq_len=policy.max_seq_len,
            reserve=reserve,
            tools=tools if policy.tools == "auto" else (),
            remember=remember,
            enable_thinking=policy.enable_thinking or False,
        )

    def __call__(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of this conversation's prompt."""
        return list(self.prompt(messages).ids)

    def prompt(self, messages: Sequence[Message], reserve: int | None = None) -> Prompt:
        """Return the prompt, elided where it is too long. Raises InputError where even the shortest form is too
        long."""
        limit = self.max_seq_len - (self.reserve if reserve is None else reserve)
        prepared = self.template.prepared(messages)
        fold = self.template.fold
        if self.concatenative and prepared[0].role != "tool" and len(fold.turns(prepared)) == len(prepared):
            return self._joined(prepared, limit)
        return self._rendered(prepared, limit)

    def _joined(self, messages: Sequence[Message], limit: int) -> Prompt:
        """Return the prompt of joined segments, counted exactly."""
        segments, opening = self._segments, messages[0]
        elision = HalfElision(messages, lambda m: segments.size(None if m is opening else opening.role, m))
        asking = segments.ids(opening.role, None)
        cut = elision.cut(limit - len(asking))
        form, ids = elision.form(cut), list[int]()
        whole = elision.newest_size <= cut.room
        for message in form if whole else form[:-1]:
            ids += segments.ids(None if message is opening else opening.role, message)
        if not whole:
            newest = elision.newest and segments.cut(opening.role, elision.newest, cut.room)
            if not newest:
                raise self._too_long(elision.opening_size + len(asking), limit)
            ids += newest
        return Prompt((*ids, *asking), cut.elided > 0 or not whole)

    def _rendered(self, messages: Sequence[Message], limit: int) -> Prompt:
        """Return the prompt of a template that does not concatenate: the estimate is lowered until the rendering
        fits."""
        each, once = self._overhead
        elision = HalfElision(messages, lambda m: self._segments.text_size(m.text) + each)
        allowed, over = limit, 0
        while True:
            cut = elision.cut(allowed - once)
            form, whole = elision.form(cut), elision.newest_size <= cut.room
            if not whole:
                keep = cut.room - over - each - self._segments.text_size(f"\n{ELIDED}\n")
                if elision.newest is None or keep < 2:
                    raise self._too_long(elision.opening_size + once, limit)
                text = elision.newest.text
                form[-1] = replace(form[-1], content=without_middle(text, self._segments.characters(text, keep)))
            ids = self._ids(form)
            if len(ids) <= limit:
                return Prompt(tuple(ids), cut.elided > 0 or not whole)
            if whole:
                allowed = min(allowed - 1, allowed * limit // len(ids))
            else:
                over += len(ids) - limit

    def _too_long(self, tokens: int, limit: int) -> InputError:
        what = "the goal is" if not self.template.tools else "the goal and the tools (policy.tools) are"
        return InputError(
            f"context of {tokens} tokens without any old turn, {limit} allowed: {what} too "
            "long; raise policy.max_seq_len"
        )

    def action_ids(self, action: str) -> list[int]:
        """Return the ids of an action and its end token, a policy's training target."""
        text = action if self.template.form is None else self.template.form.text(action)
        return [*self.tokenizer(text, add_special_tokens=False)["input_ids"], self.tokenizer.eos_token_id]

    def actions(self, text: str) -> tuple[str, ...]:
        """Return the actions in a generated text, in the order of execution."""
        return (text,) if self.template.form is None else self.template.form.actions(text)

    def opening_size(self, messages: Sequence[Message]) -> int:
        """Return the tokens at the end of a prompt that belong to the opening of a reply (`ChatTemplate.opening`)."""
        return self._segments.text_size(self.template.opening(self.template.fold.turns(messages[-1:])))

    def _ids(self, messages: Sequence[Message]) -> list[int]:
        turns = self.template.fold.turns(messages)
        if not self.concatenative:
            return self.template.render(turns, generation=True)
        ids = list(self._segments.ids(None, turns[0]))
        for turn in turns[1:]:
            ids += self._segments.ids(turns[0].role, turn)
        return ids + self._segments.ids(turns[0].role, None)

    @cached_property
    def _overhead(self) -> tuple[int, int]:
        """Tokens that the template adds to each message, on average, and once to a prompt."""
        shortest, *_, longest = (self.template.prepared(probe) for probe in probes(system=False))
        around = []
        for probe in (shortest, longest):
            rendered = self.template.render(self.template.fold.turns(probe), generation=True)
            around.append(len(rendered) - sum(self._segments.text_size(message.text) for message in probe))
        each = max(0, -(-(around[1] - around[0]) // (len(longest) - len(shortest))))
        return each, around[0] - each * len(shortest)

    def _affordable(self, tools: Sequence[ToolSpec], enable_thinking: bool) -> ChatTemplate:
        """Return the template with the tools, or without where they would leave too little room."""
        bare = ChatTemplate(self.tokenizer, enable_thinking=enable_thinking)
        if not tools:
            return bare
        template, probe, room = (
            ChatTemplate(self.tokenizer, tools, enable_thinking=enable_thinking),
            next(probes(system=False)),
            self.max_seq_len - self.reserve,
        )
        length, without = (len(t.render(t.turns(probe), generation=True)) for t in (template, bare))
        if (length - without) * _TOOLS_SHARE <= room:
            return template
        say_once(
            logging.WARNING,
            f"  tools left out of prompts, too long: policy.tools=auto tools={len(tools)} "
            f"tokens={length - without}/{room} remedy=raise policy.max_seq_len",
        )
        return bare


class Segments:
    """The tokens that single messages add to a prompt of one template, each tokenised once, for prompts of at most
    `longest` tokens. About `remember` tokens are cached.

    Prompts of a template that only concatenates messages, which is checked on probes, are joined from cached segments.
    Of a message that no prompt can hold, only as much of both ends is tokenised as a prompt could show. Sizes are
    cached longer than tokens: every old message is counted at every step, few are still shown.

    The key of a segment is the role that opens its conversation, and its message. Without a role, the message is the
    opening one; without a message, the segment is the generation prompt. Safe to use from several threads.
    """

    def __init__(self, template: ChatTemplate, longest: int, remember: int) -> None:
        self.template, self.longest, self._remember = template, longest, remember
        self._reach = _CHARACTERS * longest
        self._tokenizer: Any = template.tokenizer
        self._lock = Lock()
        self._ids: OrderedDict[tuple[str | None, Message | None], list[int]] = OrderedDict()
        self._cached_tokens = 0
        self._sizes: OrderedDict[tuple[str | None, str | None, bytes], int] = OrderedDict()

    def ids(self, opening: str | None, message: Message | None) -> list[int]:
        """Return the token ids of a segment; of one that no prompt can hold, those of its two ends, more than a prompt
        holds."""
        with self._lock:
            cached = self._ids.get((opening, message))
            if cached is not None:
                self._ids.move_to_end((opening, message))
                return cached
        # outside the lock: tokenising is slow, and twice the same result does no harm
        tokens = self._tokens(self._text(opening, message))
        with self._lock:
            if (opening, message) not in self._ids:
                self._ids[opening, message] = tokens
                self._cached_tokens += len(tokens)
            while self._cached_tokens > self._remember and len(self._ids) > 1:
                self._cached_tokens -= len(self._ids.popitem(last=False)[1])
        return tokens

    def size(self, opening: str | None, message: Message) -> int:
        """Return the tokens of a segment; a number above `longest` for one that no prompt can hold."""
        if len(message.text) < _SHORT:
            return len(self.ids(opening, message))
        return self._size((opening, message.role), message.text, lambda: len(self.ids(opening, message)))

    def text_size(self, text: str) -> int:
        """Return the tokens of a text by itself; a number above `longest` where no prompt can hold it."""
        return self._size((None, None), text, lambda: len(self._tokens(text)))

    def characters(self, text: str, tokens: int) -> int:
        """Return about how many characters of a text, of both ends together, take so many tokens."""
        return tokens * min(len(text), 2 * self._reach) // max(1, self.text_size(text))

    def _size(self, kind: tuple[str | None, str | None], text: str, count: Callable[[], int]) -> int:
        key = (*kind, hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest())
        size = self._sizes.get(key)
        if size is None:
            size = count()
            with self._lock:
                self._sizes[key] = size
                if len(self._sizes) > _SIZES:
                    self._sizes.popitem(last=False)
        return size

    def cut(self, opening: str | None, message: Message, room: int) -> list[int] | None:
        """Return a segment of `room` tokens with a marker in place of its middle; None where it would hold little more
        than the tokens that the template adds to a message."""
        marker = self._tokenised(f"\n{ELIDED}\n")
        keep = room - len(marker)
        if keep < 2 * (1 + len(self.ids(opening, replace(message, content="")))):
            return None
        ids = self.ids(opening, message)
        return [*ids[: keep - keep // 2], *marker, *ids[len(ids) - keep // 2 :]]

    def concatenate(self) -> bool:
        """True if joined segments equal the rendered whole, and each begins with a special token, so that no merge of
        the tokenizer crosses a border for any message."""
        added = set(self._tokenizer.get_added_vocab().values()) | set(self._tokenizer.all_special_ids)
        for messages in [*probes(system=True), *probes(system=False)]:
            probe = self.template.turns(messages)
            keys: list[tuple[str | None, Message | None]] = [(None, probe[0])]
            keys += [(probe[0].role, message) for message in (*probe[1:], None)]
            texts = [self._text(*key) if self._is_possible(*key) else None for key in keys]
            if None in texts:
                return False
            pieces = [self._tokenised(text) for text in texts if text is not None]
            joined = [token for piece in pieces for token in piece]
            if joined != self.template.render(probe, generation=True) or any(p and p[0] not in added for p in pieces):
                return False
        return True

    def _is_possible(self, opening: str | None, message: Message | None) -> bool:
        """True if the template renders this message alone, and after an opening without changing that."""
        if opening is None:
            return self.template.try_text([message] if message else [], generation=False) is not None
        start = _start(opening)
        before = self.template.try_text([start], generation=False)
        after = self.template.try_text([start, message] if message else [start], generation=message is None)
        return before is not None and after is not None and after.startswith(before)

    def _text(self, opening: str | None, message: Message | None) -> str:
        if opening is None:
            assert message is not None
            return self.template.text([message], generation=False)
        start = _start(opening)
        before = self.template.text([start], generation=False)
        after = [start] if message is None else [start, message]
        return self.template.text(after, generation=message is None)[len(before) :]

    def _tokens(self, text: str) -> list[int]:
        if len(text) > 2 * self._reach:
            head = self._tokenised(text[: self._reach])[:-_SLACK]
            tail = self._tokenised(text[-self._reach :])[_SLACK:]
            if 2 * min(len(head), len(tail)) > self.longest:
                return head + tail
        return self._tokenised(text)

    def _tokenised(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])


def _start(role: str) -> Message:
    return Message(role=role, content="")  # type: ignore[arg-type]
