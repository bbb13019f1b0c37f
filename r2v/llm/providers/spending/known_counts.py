"""Known token counts: the provider's count of a prompt bounds the tokens of later prompts that begin with it.

A token has at least one byte, so bytes bound an uncounted prompt, at about four times its cost. A mean of bytes per
token is no bound: the next page may be digits. The provider's own count of the same words is one. A chat is tokenized
message by message, between marks that no token crosses, so that a prompt has at most

    the tokens of the longest earlier prompt that begins it, and a token for each byte after that

Its head (system prompt, tools, model) has at most the tokens of any prompt with that head. These bounds are used only
after they have held `_TRIALS` times at this provider, and never again once an answer exceeds one: bytes alone are
reserved from then on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from r2v.llm.providers.provider_requests import canonical_json, max_prompt_tokens

_TRIALS = 3
"""Number of answers within the bound before it is used."""
_REMEMBERED = 1 << 16
"""Most remembered prompt beginnings: about 8 MB."""
# fields that add no prompt tokens, or whose tokens are counted message by message
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
        """Digest of a prompt's beginning -> the most tokens that it can have."""
        self._held = 0
        self.refuted = False
        """True if the provider has counted more tokens than a bound."""

    def at_most(self, body: Mapping[str, Any]) -> int | None:
        """Return a bound on the prompt tokens of a body from earlier counts; None: no count, or bounds not in use."""
        return self._bound(body) if self._held >= _TRIALS and not self.refuted else None

    def learn(self, body: Mapping[str, Any], tokens: int) -> None:
        """Record the provider's count of tokens in a prompt."""
        messages = _messages(body)
        if messages is None or self.refuted:
            return
        bound = self._bound(body)
        if bound is not None:
            self._held += 1
            self.refuted = tokens > bound
        # head, first message and whole prompt: later turns begin with the whole, other episodes with the first two
        marks = list(_marks(body, messages))
        for mark in dict.fromkeys((*marks[:2], marks[-1])):
            # popped first: insertion order then is the order of use, and the oldest is dropped
            self._tokens[mark] = min(tokens, self._tokens.pop(mark, tokens))
        while len(self._tokens) > _REMEMBERED:
            del self._tokens[next(iter(self._tokens))]

    def _bound(self, body: Mapping[str, Any]) -> int | None:
        messages = _messages(body)
        if messages is None:
            return None
        counted = [(at, self._tokens[mark]) for at, mark in enumerate(_marks(body, messages)) if mark in self._tokens]
        rests = (tokens + max_prompt_tokens({"messages": messages[at:]}) for at, tokens in counted)
        return min(rests, default=None)


def _messages(body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]] | None:
    """Return the messages of a body of any endpoint; None without a list of them."""
    messages = body.get("messages", body.get("input"))
    return messages if isinstance(messages, list) else None


def _marks(body: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
    """Yield a digest of the head, then of each beginning of the conversation."""
    head = {name: value for name, value in body.items() if name not in _NOT_THE_PROMPT}
    state = hashlib.blake2b(canonical_json(head).encode(), digest_size=16)
    yield state.digest()
    for message in messages:
        state.update(canonical_json(message).encode() + b"\n")
        yield state.digest()
