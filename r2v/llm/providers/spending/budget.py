"""Budget: a request is sent only after its worst case is reserved, and every amount is journaled.

    spent + lost + reserved + the next request's worst case <= cap

A `SpendTracker` writes one provider's journal. Its cap is a `SharedBudget`, which all models of one job share. A batch
or call reserves its worst case (the provider's counts of known text and a token for each further byte of the prompt,
all of max_tokens, every prompt token written to the dearest cache) and releases the rest when its result is journaled.
So the cap holds for any answer of the provider.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from r2v.errors import EnvironmentFault, InputError
from r2v.llm.providers.prices import Rate
from r2v.llm.providers.provider_requests import ProviderRequest, RequestVerdict, canonical_json, max_prompt_tokens
from r2v.llm.providers.spending.journal import Journal, JournalRow
from r2v.llm.providers.spending.journal_state import JournalState
from r2v.llm.providers.spending.quota import PROJECT_CAP, Quota
from r2v.log import logger

_ROUNDING = 1e-9
"""USD: sums of many small reservations do not return to exactly 0."""


class SharedBudget:
    """A hard cap in USD (None: no cap) on all trackers that join.

    num_trackers: nothing may be reserved before this many have joined, because their spending in earlier processes is
    unknown until they have read their journals. name: the setting to raise, for the error message.
    """

    def __init__(
        self,
        cap: float | None,
        *,
        num_trackers: int = 1,
        name: str = "teacher.max_usd",
        quota: Quota | None = None,
    ) -> None:
        self.cap, self.name, self._num_trackers = cap, name, num_trackers
        self.quota = quota
        self._trackers: dict[Path, SpendTracker] = {}

    def join(self, tracker: SpendTracker) -> None:
        """Add a tracker, in place of an earlier one on the same journal."""
        self._trackers[tracker.journal.path] = tracker
        self.notify()

    @property
    def is_capped(self) -> bool:
        """True if any cap holds."""
        return self.cap is not None or (self.quota is not None and self.quota.cap < float("inf"))

    @property
    def remaining(self) -> float:
        """USD that may be reserved without extending the quota under a shared cap."""
        own = float("inf") if self.cap is None else self.cap
        limit = own if self.quota is None else min(own, self.quota.usd)
        if limit == float("inf"):
            return limit
        return limit - self.committed if self._complete else 0.0

    @property
    def within_reach(self) -> float:
        """USD that may be reserved if no other process takes them."""
        own = float("inf") if self.cap is None else self.cap
        cap = own if self.quota is None else min(own, self.quota.cap)
        return max(self.remaining, cap - self.committed)

    @property
    def committed(self) -> float:
        """USD that all trackers have spent, may have spent, or hold reserved."""
        return sum(tracker.committed for tracker in self._trackers.values())

    async def extend(self, usd: float, wish: float = 0.0) -> bool:
        """Extend the quota under a shared cap to cover `usd`, better `wish`. Return False if it is refused for good,
        True if `remaining` should be checked again."""
        if self.quota is None or (self.cap is not None and self.committed + usd > self.cap + _ROUNDING):
            return False
        return self.remaining >= max(usd, wish) or await self.quota.extend(lambda: self.committed, usd, wish)

    @property
    def idle(self) -> bool:
        """True if nothing is in flight whose end could release a reservation."""
        return self._complete and not any(tracker.busy for tracker in self._trackers.values())

    @property
    def _complete(self) -> bool:
        return len(self._trackers) >= self._num_trackers

    def notify(self) -> None:
        """Wake all tasks that wait for a change at any tracker."""
        for tracker in self._trackers.values():
            tracker.wake()

    def exhausted(self, next_usd: float) -> EnvironmentFault:
        """Return the error of a reached cap. next_usd: worst case of the next request."""
        lost = sum(tracker.state.lost_usd for tracker in self._trackers.values())
        spent = sum(tracker.state.spent for tracker in self._trackers.values()) + lost
        of_it_lost = f" (of it at most ${lost:.4f} for calls whose answers were lost)" if lost else ""
        name, cap, remedy = self.name, self.cap, f"raise {self.name}"
        own_cap = self.cap is not None and self.committed + next_usd > self.cap + _ROUNDING
        if not own_cap and self.quota is not None and self.quota.refusal is not None:
            refusal = self.quota.refusal
            name, cap, spent = refusal.name, refusal.cap, spent + refusal.others_usd
            remedy = "raise it by `r2v providers ledger --max-usd USD`" if name == PROJECT_CAP else f"raise {name}"
        return EnvironmentFault(
            f"{name}={cap}: ${spent:.4f} are spent{of_it_lost} and the next request may cost "
            f"${next_usd:.4f}; everything answered is kept: {remedy} and run the same command again"
        )


class SpendTracker:
    """One provider's journal and its state, paid from a shared budget."""

    def __init__(self, journal: Journal, state: JournalState, rate: Rate, budget: SharedBudget) -> None:
        self.journal, self.state, self.rate, self.budget = journal, state, rate, budget
        self._unwritten = 0.0
        """USD set aside while the row of their reservation is being written."""
        self._changed = asyncio.Event()
        self._counts = KnownCounts()
        budget.join(self)

    @property
    def committed(self) -> float:
        """USD spent, lost or reserved."""
        return self.state.spent + self.state.lost_usd + self.state.reserved + self._unwritten

    @property
    def busy(self) -> bool:
        """True if anything is in flight."""
        return bool(self.state.batches or self.state.calls) or self._unwritten >= _ROUNDING

    def worst_case(self, request: ProviderRequest, *, batch: bool) -> float:
        """Return the most USD that a request can cost."""
        return self.rate.worst_case(request.prompt_at_most, request.max_tokens, batch=batch)

    def bounded(self, request: ProviderRequest) -> ProviderRequest:
        """Return the request with the provider's counts of its prompt; only caps need that bound."""
        return replace(request, counted_in=self._counts.at_most(request.body)) if self.budget.is_capped else request

    def learn(self, request: ProviderRequest, verdict: RequestVerdict) -> None:
        """Record the provider's count of a prompt, for later bounds."""
        if self.budget.is_capped and verdict.tokens is not None:
            self._counts.learn(request.body, verdict.tokens.input)

    def billed(self, request: ProviderRequest, verdict: RequestVerdict, *, batch: bool) -> float:
        """Return the USD billed for a request; its worst case if the provider sent no usage."""
        if not verdict.billed:
            return 0.0
        if verdict.tokens is None:
            return self.worst_case(request, batch=batch)
        return self.rate.usd(verdict.tokens, batch=batch)

    def set_aside(self, usd: float) -> bool:
        """Reserve USD in memory until `write_reservation` has journaled them; return False if less remains.

        It takes effect at once: other tasks run between the check and the written row, and must not reserve the same
        money.
        """
        if usd > self.budget.remaining + _ROUNDING:
            return False
        self._unwritten += usd
        return True

    async def write_reservation(self, row: JournalRow) -> None:
        """Write the row of an amount set aside, after which the journal's state holds the reservation."""
        try:
            await self.write(row)
        finally:  # also after a failed write: nothing was sent, so nothing is owed
            self._unwritten -= row["usd"]

    async def write(self, *rows: JournalRow) -> None:
        """Append rows to the journal, and apply them to the state once they are on disk."""
        for row, offset in zip(rows, await self.journal.write(*rows), strict=True):
            self.state.apply(row, offset)
        self.notify()

    def notify(self) -> None:
        """Wake all tasks that wait at this tracker or at one that shares its budget."""
        self.budget.notify()

    def wake(self) -> None:
        """Wake the tasks that wait at this tracker."""
        # a new event per change: a task that begins to wait now sleeps until the next one
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def wait_for_change(self) -> None:
        """Wait for the next change."""
        await self._changed.wait()


JOURNAL_VERSION = 1


async def open_journal(journal: Journal, scope: Mapping[str, Any], rate: Rate, budget: SharedBudget) -> SpendTracker:
    """Return the tracker of a journal with the state of all its rows; calls in flight of a dead process are booked.
    scope: the journal's owner (provider, model). Raise InputError for a journal of another scope or version, and for a
    malformed line."""
    state = JournalState()
    _require_journal(journal.path)
    for number, (offset, row) in enumerate(journal.open(), 1):
        try:
            if row["row"] == "open":
                _check_scope(row, scope, journal.path)
            state.apply(row, offset)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"{journal.path}:{number}: no row that can follow those before it ({error!r}), and the journal records "
                "payments: restore the file from a backup, or start a new run (which pays anew)"
            ) from None
    tracker = SpendTracker(journal, state, rate, budget)
    if not state.run:
        run = secrets.token_hex(4)
        await tracker.write({"row": "open", "version": JOURNAL_VERSION, "run": run, "scope": dict(scope)})
    await _book_lost_calls(tracker)
    return tracker


def _require_journal(path: Path) -> None:
    """Raise InputError if the input files of batches exist without their journal."""
    inputs = sorted((path.parent / "inputs").glob("*.jsonl"))
    if inputs and not path.exists():
        raise InputError(
            f"{path}: is gone, and {inputs[0]} is the input of a batch that it records: restore the journal from a "
            "backup, or start a new run (which pays anew)"
        )


async def _book_lost_calls(tracker: SpendTracker) -> None:
    """Book the worst case of direct calls that were in flight when the last process died. Unlike batches they cannot be
    looked up, so their requests are sent again."""
    lost = dict(tracker.state.calls)
    if not lost:
        return
    logger.warning(
        "  direct calls of the last process have no answer and may have been billed: calls=%d at_most=$%.4f",
        len(lost),
        sum(lost.values()),
    )
    await tracker.write(
        *({"row": "lost", "id": custom_id, "usd": usd, "why": "the process ended"} for custom_id, usd in lost.items())
    )


def _check_scope(row: Mapping[str, Any], scope: Mapping[str, Any], path: Path) -> None:
    """Raise InputError if a journal's first row has another version or another scope."""
    if row["version"] != JOURNAL_VERSION:
        raise InputError(
            f"{path}: is of version {row['version']}, this R2V writes {JOURNAL_VERSION}; finish it with the R2V that "
            "began it"
        )
    recorded = row["scope"]
    differences = [
        f"{name}={recorded.get(name)} there, {scope.get(name)} here"
        for name in sorted({*recorded, *scope})
        if recorded.get(name) != scope.get(name)
    ]
    if differences:
        raise InputError(
            f"{path}: belongs to another configuration ({'; '.join(differences)}); use that one, or start a new run"
        )


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
    """The provider's counts of one model's prompts, which bound the tokens of later prompts that begin with them.

    A token has at least one byte, so bytes bound an uncounted prompt, at about four times its cost. A mean of bytes per
    token is no bound: the next page may be digits. A chat is tokenized message by message, between marks that no token
    crosses, so that a prompt has at most the tokens of the longest earlier prompt that begins it, and a token for each
    byte after that. Its head (system prompt, tools, model) has at most the tokens of any prompt with that head. These
    bounds are used only after they have held `_TRIALS` times at this provider, and never again once an answer exceeds
    one.
    """

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
