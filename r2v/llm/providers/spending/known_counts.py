"""Known counts: what the provider has counted of a text bounds what the same text costs again.

    counts.learn(body, 1240)        # the provider's own count of this prompt
    counts.at_most(longer_body)     # the tokens that a prompt which begins like it may have; None: nothing is known

A token is at least a byte, so bytes bound a prompt that nobody has counted, at about four times what it costs. A mean
of bytes a token is no bound: the next page may be digits. What is one is the provider's own count of the same words. A
chat is counted message by message, between marks that no token crosses, so that a prompt has at most

    the tokens of the longest earlier prompt that begins it, and a token for each byte after that

Its head (system prompt, tools, model) alone has at most what any prompt with it was counted at. None of that is relied
on before it has been seen to hold `_TRIALS` times at this provider, and never again once an answer says otherwise:
then bytes alone are reserved.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from r2v.llm.providers.provider_requests import canonical_json, max_prompt_tokens

_TRIALS = 3
"""Answers that must have had no more tokens than was foreseen before that is relied on."""
_REMEMBERED = 1 << 16
"""Prompts: some 8 MB."""
_NOT_THE_PROMPT = {
    "messages",
    "input",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "temperature",
    "top_p",
}


class KnownCounts:
    """The counts of one model's prompts in one process."""

    def __init__(self) -> None:
        self._tokens: dict[bytes, int] = {}
        """By digest of a prompt's beginning: the most tokens that it can have."""
        self._held = 0
        self.refuted = False
        """Whether the provider has counted more than was foreseen."""

    def at_most(self, body: Mapping[str, Any]) -> int | None:
        """The most prompt tokens of a body, by what was counted; None: nothing is known, or not relied on."""
        return self._foreseen(body) if self._held >= _TRIALS and not self.refuted else None

    def learn(self, body: Mapping[str, Any], tokens: int) -> None:
        """The provider counted so many tokens in this prompt."""
        messages = _messages(body)
        if messages is None or self.refuted:
            return
        foreseen = self._foreseen(body)
        if foreseen is not None:
            self._held += 1
            self.refuted = tokens > foreseen
        marks = list(_marks(body, messages))
        for mark in dict.fromkeys((*marks[:2], marks[-1])):
            self._tokens[mark] = min(tokens, self._tokens.pop(mark, tokens))
        while len(self._tokens) > _REMEMBERED:
            del self._tokens[next(iter(self._tokens))]

    def _foreseen(self, body: Mapping[str, Any]) -> int | None:
        messages = _messages(body)
        if messages is None:
            return None
        known = [(at, self._tokens[mark]) for at, mark in enumerate(_marks(body, messages)) if mark in self._tokens]
        return min(tokens + max_prompt_tokens({"messages": messages[at:]}) for at, tokens in known) if known else None


def _messages(body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]] | None:
    """The conversation of a body, whichever endpoint it is for."""
    messages = body.get("messages", body.get("input"))
    return messages if isinstance(messages, list) else None


def _marks(body: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
    """A digest of the head, and of each beginning of the conversation."""
    head = {name: value for name, value in body.items() if name not in _NOT_THE_PROMPT}
    state = hashlib.blake2b(canonical_json(head).encode(), digest_size=16)
    yield state.digest()
    for message in messages:
        state.update(canonical_json(message).encode() + b"\n")
        yield state.digest()
