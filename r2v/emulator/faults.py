"""Fault injection: failures of a provider by name.

    Fault("commit_then_reset", at=1)                 the first time it could happen
    Fault("line_500", probability=0.1)               seeded: the same calls are hit in every run
    Fault("500", on="create", at=(1, 2))             only calls of one kind; see ROUTE_NAMES
    Fault("line_429", on="anthropic.create", at=3)   only one provider's
    Fault("503")                                     every time

A fault happens at an *occasion*: a call, a commit, an upload, a batch, a line, a download. `at` counts the
occasions of its kind that pass `on`, from 1. On the command line a fault is written `NAME[/ON][@N[,N...]|:P]`.

call: any call, before anything is done
    429_retry_after_2      429, Retry-After: 2
    429_retry_after_300    429, Retry-After: 300 (openai refuses to wait so long, anthropic waits)
    429_retry_after_date   429, Retry-After as an HTTP date two seconds ahead
    429_no_retry_after     429 without Retry-After
    401                    the key is refused
    call_400               400, as for a parameter that the model does not know
    500 502 503 529        that status with the provider's error body (502: a proxy's HTML page)
    credit_exhausted       OpenAI 429 insufficient_quota; Anthropic 400 "credit balance is too low"
    reset                  the connection is reset before anything is done
    reset_upload           the connection is reset when half of the body has been read (calls with a body)

commit: a create, synchronous call or upload that is carried out and then not confirmed (create unless `on` is given)
    commit_then_500        500 after the commit
    commit_then_529        529 after the commit
    commit_then_reset      connection reset after the commit
    commit_then_silence    nothing is sent for Timing.silence seconds, then the connection closes

upload: a file that is uploaded
    file_late_404          creating a batch of it is refused with 404 for Timing.late seconds after the upload
    file_late_400          the same with 400

batch: a batch that is created
    token_limit_refused    create: 429, too many tokens (OpenAI) or requests (Anthropic) in the queue
    token_limit_failed     OpenAI: status failed, errors[token_limit_exceeded]; create itself does not raise
    validation_failed      OpenAI: status failed, errors[] with a line each
    listed_late            the batch is missing from listings for Timing.late seconds
    expired_none_done      expired, no request was run
    expired_half_done      expired, the first half was run and is billed
    expired_all_done       expired, every request was run and is billed
    expired_no_files       OpenAI: expired, nothing run, both file ids null
    completed_null_output  OpenAI: completed, every line failed with 400, output_file_id null
    completed_empty_output OpenAI: the same with output_file_id ""
    file_id_late           OpenAI: the first poll of the completed batch shows no file ids
    counts_zero            OpenAI: counts are zero until the end (Anthropic's always are)
    unknown_status         one poll shows a status unknown to clients
    second_poller          every poll counts as two: states are skipped, as when another process polls
    cancel_never_ends      after a cancel, cancelling/canceling for ever
    archived               results are gone: 404 and archived_at (Anthropic), file 404 (OpenAI)
    results_other_host     Anthropic: results_url names another host, which must not be sent the key

line: one request of a batch, when it is run; none of these is billed
    line_400               rejected: invalid_request_error
    line_429               rate limited
    line_500               server error
    line_overloaded        503 (OpenAI), overloaded_error (Anthropic)
    line_credit            credit exhausted, as an invalid_request_error
    line_expired           batch_expired / expired, alone
    line_string_code       OpenAI: response null and error.code a word; Anthropic: an unknown error type
    line_missing           the request has no line at all, and is not counted as failed

answer: one request that is answered, in a batch or not; billed
    refusal                the model refuses (content_filter and message.refusal; stop_reason refusal)
    max_tokens             cut at half: finish_reason length, stop_reason max_tokens
    context_full           cut at half: finish_reason length, stop_reason model_context_window_exceeded
    no_text                the text is empty
    usage_missing          the answer has no usage
    u2028                  the text holds raw U+2028 and U+0085

download: one download of a result file
    lines_reversed         in reverse order
    lines_duplicated       every line twice
    lines_malformed        the middle line is not JSON
    lines_truncated        ends, properly, in the middle of the last line
    lines_cut              ends, properly, after half of the lines
    lines_crlf             lines end in CR LF
    results_dropped        the connection closes in the middle of the file
    slow_trickle           a piece at a time, with pauses

server: from the start
    clock_skew             the server's clock, in bodies and Date headers, is off by Timing.skew
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from r2v.errors import UsageError, nearest
from r2v.randomness import uniform

PROVIDERS = ("openai", "anthropic")
ROUTE_NAMES = ("upload", "file", "create", "list", "poll", "cancel", "delete", "results", "sync")
"""Kinds of calls that `on` may name."""

POINTS = ("call", "commit", "upload", "batch", "line", "answer", "download", "server")


def _by_point() -> dict[str, str]:
    """Return the point of each fault, parsed from the table above, which is therefore complete."""
    points: dict[str, str] = {}
    point = ""
    for line in (__doc__ or "").splitlines():
        head = line.split(":")[0]
        if head in POINTS:
            point = head
        elif point and line.startswith("    ") and not line.startswith("     "):
            names = line[4:27].split()
            points.update(dict.fromkeys(names, point))
    return points


FAULT_POINTS = _by_point()
"""Kind of occasion by fault name."""


@dataclass(frozen=True)
class Fault:
    """A fault and its occasions. Raises UsageError for an unknown name or an invalid occasion."""

    name: str
    at: int | tuple[int, ...] | None = None
    """Occasions by number, from 1."""
    probability: float | None = None
    """Share of the occasions; without `at` and `probability`, all of them."""
    on: str | None = None
    """A provider, a route, or both joined by a dot."""

    def __post_init__(self) -> None:
        if self.name not in FAULT_POINTS:
            raise UsageError(f"fault {self.name}: no such fault; {nearest(self.name, FAULT_POINTS)}")
        if self.at is not None and self.probability is not None:
            raise UsageError(f"fault {self.name}: has both at={self.at} and probability={self.probability}; give one")
        if any(number < 1 for number in self.occasions):
            raise UsageError(f"fault {self.name}: at={self.at}; occasions count from 1")
        if self.probability is not None and not 0 <= self.probability <= 1:
            raise UsageError(f"fault {self.name}: probability={self.probability}; allowed: 0 to 1")
        for part in self.parts:
            if part not in (*PROVIDERS, *ROUTE_NAMES):
                raise UsageError(f"fault {self.name}: on={self.on}; {nearest(part, (*PROVIDERS, *ROUTE_NAMES))}")

    @property
    def occasions(self) -> tuple[int, ...]:
        """Return `at` as a tuple."""
        return () if self.at is None else (self.at,) if isinstance(self.at, int) else self.at

    @property
    def parts(self) -> frozenset[str]:
        """Return the words of `on`."""
        return frozenset(self.on.split(".")) if self.on else frozenset()

    @property
    def identity(self) -> str:
        """Return the fault in the command line's form."""
        when = "@" + ",".join(map(str, self.occasions)) if self.occasions else ""
        share = "" if self.probability is None else f":{self.probability}"
        return self.name + (f"/{self.on}" if self.on else "") + when + share

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Return the fault written as `NAME[/ON][@N[,N...]|:P]`. Raises UsageError.

        >>> Fault.parse("500/create@1,3").at
        (1, 3)
        """
        head, _, occasions = text.partition("@")
        head, _, share = head.partition(":")
        name, _, on = head.partition("/")
        try:
            return cls(
                name,
                at=tuple(map(int, occasions.split(","))) if occasions else None,
                probability=float(share) if share else None,
                on=on or None,
            )
        except ValueError as error:
            raise UsageError(
                f"fault {text}: allowed: NAME[/ON][@N[,N...]|:P], such as 500/create@1 or line_500:0.1"
            ) from error


class Injector:
    """Seeded, thread-safe choice of the faults at an occasion.

    fired: earlier occasions by `Fault.identity`, from which a restarted emulator continues to count.
    note: called with (identity, occasion) for each fault that fires.
    """

    def __init__(
        self,
        faults: Iterable[Fault],
        *,
        seed: int,
        fired: dict[str, list[int]] | None = None,
        note: Callable[[str, int], None],
    ) -> None:
        self._faults = tuple(faults)
        self._seed, self._note = seed, note
        self._lock = threading.Lock()
        self._fired = fired or {}
        self._count = Counter({identity: max(numbers) for identity, numbers in self._fired.items()})
        self._points = frozenset(FAULT_POINTS[fault.name] for fault in self._faults)

    def draw(self, point: str, provider: str, route: str) -> frozenset[str]:
        """Return the names of the faults that fire at this occasion."""
        if point not in self._points:
            return frozenset()
        with self._lock:
            return frozenset(
                fault.name
                for fault in self._faults
                if FAULT_POINTS[fault.name] == point and _concerns(fault, provider, route) and self._hits(fault)
            )

    def _hits(self, fault: Fault) -> bool:
        self._count[fault.identity] += 1
        occasion = self._count[fault.identity]
        if fault.at is not None:
            hit = occasion in fault.occasions
        elif fault.probability is not None:
            hit = uniform(self._seed, fault.identity, occasion) < fault.probability
        else:
            hit = True
        if hit:
            self._note(fault.identity, occasion)
        return hit


def _concerns(fault: Fault, provider: str, route: str) -> bool:
    if not fault.parts <= {provider, route}:
        return False
    if FAULT_POINTS[fault.name] == "commit" and not fault.parts & set(ROUTE_NAMES):
        return route == "create"
    return fault.name != "reset_upload" or route in ("upload", "create", "sync")
