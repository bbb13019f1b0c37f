"""What a provider can do for us, and how it fails: the narrow door behind which an official SDK stands.

Each call is one attempt; whoever calls decides what to do next. A failure says whether the provider may have done
what it was asked (`ambiguous`), which is the difference between asking again and paying twice.
"""

from __future__ import annotations

import email.utils
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from r2v.llm.providers.classify import failure, one_line
from r2v.llm.providers.provider_requests import Ask, Kind, Line, Verdict
from r2v.llm.types import Request


class ProviderFault(Exception):
    """A call that gave no answer.

    status: None where none was had (reset, timeout). ambiguous: it may have been carried out all the same.
    retry_after: seconds that the provider asks for.
    """

    def __init__(
        self, reason: str, *, kind: Kind, status: int | None = None, code: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(reason)
        self.reason, self.kind, self.status, self.code, self.retry_after = reason, kind, status, code, retry_after

    @property
    def ambiguous(self) -> bool:
        """Whether it may have been carried out."""
        return self.status is None or self.status in (408, 409) or self.status >= 500

    @property
    def slow_down(self) -> bool:
        """Whether the provider asks everybody to be slower."""
        return self.status in (429, 503, 529)


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchState:
    """A provider batch as a look at it shows it. `key`, `input_file`: what it was made with, where told."""

    id: str
    state: str
    done: bool
    failed: bool = False
    """Refused as a whole after its creation: nothing was run."""
    total: int = 0
    completed: int = 0
    errored: int = 0
    key: str | None = None
    input_file: str | None = None
    files: tuple[str, ...] = ()
    """Where its results are: file ids, or one URL."""
    errors: tuple[tuple[str, int | None, str], ...] = ()
    """(code, line from 1, message) of a refusal."""
    lagging: bool = False
    """It is done, and what it says is done can't be fetched yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Called:
    """A direct call's verdict; `remaining` and `reset` (seconds) are the rate limit's, where told."""

    verdict: Verdict
    remaining: int | None = None
    reset: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchLimits:
    """What one batch may hold."""

    requests: int
    bytes: int
    endpoint: str
    uploads: bool
    """Its input is a file that is uploaded first."""


class Direct(Protocol):
    """Wording and direct calls."""

    def body(self, request: Request) -> Mapping[str, Any]:
        """The request as the provider's JSON, the same in a batch and in a call."""
        ...

    async def call(self, ask: Ask) -> Called:
        """Ask now. Raises ProviderFault."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class Submitting(Protocol):
    """Making batches. Each raises ProviderFault."""

    async def upload(self, path: Path) -> str:
        """Bring an input file there; its id."""
        ...

    async def create(self, key: str, path: Path, file_id: str | None) -> BatchState:
        """Make a batch of it, once, without any retry."""
        ...

    def recent(self) -> AsyncIterator[BatchState]:
        """The account's batches, newest first."""
        ...


class Collecting(Protocol):
    """Following batches. Each raises ProviderFault."""

    async def look(self, batch_id: str) -> BatchState:
        """How it is."""
        ...

    def lines(self, state: BatchState) -> AsyncIterator[Line]:
        """Its results, line by line as they come, in whatever order."""
        ...

    async def cancel(self, batch_id: str) -> None:
        """Ask for its end; what has been answered stays."""
        ...


class Provider(Direct, Submitting, Collecting, Protocol):
    """All of it."""

    name: Literal["openai", "anthropic"]
    limits: BatchLimits

    def wire(self, ask: Ask) -> dict[str, Any]:
        """The ask as a line of an input file."""
        ...


def fault_of(error: Any, secret: str) -> ProviderFault:
    """The fault in either SDK's exception (their classes have the same names and fields)."""
    status = getattr(error, "status_code", None)
    if status is None:
        return ProviderFault(one_line(f"{type(error).__name__}: {error}", secret), kind="retry")
    body = getattr(error, "body", None)
    inner = body.get("error", body) if isinstance(body, Mapping) else (body or str(error))
    verdict = failure(status, inner)
    code = str(inner.get("code") or inner.get("type") or "") if isinstance(inner, Mapping) else ""
    return ProviderFault(
        one_line(verdict.reason, secret),
        kind=verdict.kind,
        status=status,
        code=code,
        retry_after=seconds_of(error.response.headers),
    )


def seconds_of(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """The wait that a Retry-After header asks for: seconds, or an HTTP date by the server's own clock."""
    asked = headers.get("retry-after")
    if not asked:
        return None
    try:
        return max(0.0, float(asked))
    except ValueError:
        pass
    try:
        until = email.utils.parsedate_to_datetime(asked).timestamp()
        told = headers.get("date")
        here = email.utils.parsedate_to_datetime(told).timestamp() if told else (now or time.time())
    except (TypeError, ValueError):
        return None
    return max(0.0, until - here)


@dataclass(kw_only=True)
class LineSplitter:
    """Cuts a byte stream into lines at b"\\n" alone: U+2028 and U+0085 are part of a text."""

    _rest: list[bytes] = field(default_factory=list)

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are whole now, without their ends."""
        *whole, rest = data.split(b"\n")
        if whole:
            whole[0] = b"".join([*self._rest, whole[0]])
            self._rest = []
        self._rest.append(rest)
        return [line.removesuffix(b"\r") for line in whole if line.strip()]

    def end(self) -> bytes:
        """What stood after the last line's end."""
        rest, self._rest = b"".join(self._rest), []
        return rest if rest.strip() else b""
