"""Segments: the tokens that single messages add to a prompt, each tokenised once.

A template that only strings messages together is checked on probes, and its prompts are made of remembered segments.
Of a message that no prompt can hold, only as much of both ends is tokenised as a prompt could show. Sizes are kept
longer than tokens: every old message is counted at every step, few are still shown.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from threading import Lock
from typing import Any

from r2v.policy.chat_template import ChatTemplate, probes
from r2v.policy.half_elision import ELIDED
from r2v.wire.message import Message

_CHARACTERS = 3
"""Characters of each end of a long text that are tokenised, for each token of the longest prompt."""
_SLACK = 16
"""Tokens where a text was cut open, which may not be those of the whole."""
_SIZES = 1 << 16
_SHORT = 2048
"""Characters below which looking up a segment costs less than hashing its text."""


class Segments:
    """Segments of one template, for prompts of at most `longest` tokens. About `remember` tokens are kept.

    A segment is named by the role that opens its conversation and by its message: without a role, the message is the
    opening one; without a message, it is what asks for the action. Safe to use from several threads.
    """

    def __init__(self, template: ChatTemplate, longest: int, remember: int) -> None:
        self.template, self.longest, self._remember = template, longest, remember
        self._reach = _CHARACTERS * longest
        self._tokenizer: Any = template.tokenizer
        self._lock = Lock()
        self._ids: OrderedDict[tuple[str | None, Message | None], list[int]] = OrderedDict()
        self._kept = 0
        self._sizes: OrderedDict[tuple[str | None, str | None, bytes], int] = OrderedDict()

    def ids(self, opening: str | None, message: Message | None) -> list[int]:
        """Token ids of a segment; of one that no prompt can hold, those of its two ends, more than a prompt holds."""
        with self._lock:
            known = self._ids.get((opening, message))
            if known is not None:
                self._ids.move_to_end((opening, message))
                return known
        made = self._tokens(self._text(opening, message))
        with self._lock:
            if (opening, message) not in self._ids:
                self._ids[opening, message] = made
                self._kept += len(made)
            while self._kept > self._remember and len(self._ids) > 1:
                self._kept -= len(self._ids.popitem(last=False)[1])
        return made

    def size(self, opening: str | None, message: Message) -> int:
        """Tokens of a segment; some number above `longest` for one that no prompt can hold."""
        if len(message.text) < _SHORT:
            return len(self.ids(opening, message))
        return self._size((opening, message.role), message.text, lambda: len(self.ids(opening, message)))

    def text_size(self, text: str) -> int:
        """Tokens of a text by itself; some number above `longest` where no prompt can hold it."""
        return self._size((None, None), text, lambda: len(self._tokens(text)))

    def characters(self, text: str, tokens: int) -> int:
        """About how many characters of a text, of both its ends together, take so many tokens."""
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
        """A segment without its middle, a marker in its place: `room` tokens. None where that would hold little more
        than what the template puts around a message."""
        marker = self._tokenised(f"\n{ELIDED}\n")
        keep = room - len(marker)
        if keep < 2 * (1 + len(self.ids(opening, replace(message, content="")))):
            return None
        ids = self.ids(opening, message)
        return [*ids[: keep - keep // 2], *marker, *ids[len(ids) - keep // 2 :]]

    def string_together(self) -> bool:
        """Whether segments joined are the rendered whole, and each begins with a token of its own, so that no merge can
        reach across a border whatever the messages say."""
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
        """Whether the template renders this message alone, and after an opening without changing that."""
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
