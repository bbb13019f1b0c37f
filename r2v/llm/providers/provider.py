"""The Provider protocols: what a provider's model can do for us, and how a call to it fails.

A provider that only answers direct calls implements `Provider`, three methods: that is all a provider of one's own
needs (docs/extending/provider.md). One that also takes batches implements `BatchProvider`.

Every method is one attempt and never retries; the dispatcher decides what to do next. A failure says whether the
provider may have carried out the call all the same (`ambiguous`): that is the difference between sending it again and
paying twice.
"""

from __future__ import annotations

import email.utils
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from r2v.environment import proxy_of
from r2v.llm.providers.provider_requests import ProviderRequest, RequestVerdict, ResultLine, VerdictKind
from r2v.llm.providers.verdicts import one_line, verdict_of_error, verdict_of_reply
from r2v.llm.types import Request
from r2v.wire.chat import NotThisFormat
from r2v.wire.errors import WireError, read_error
from r2v.wire.exchange import WireReply

_DATE = len("Sun, 06 Nov 1994 08:49:37 GMT")


class ProviderFault(Exception):
    """A call that brought no answer.

    status: the HTTP status; None where no response came (reset, timeout). answered: the answer came, and says that it
    failed. verdict: what it means for the request. sent: False where no connection was made, so
    that nothing can have been carried out or billed. retry_after: seconds that the provider asks for.
    """

    def __init__(
        self,
        reason: str,
        *,
        kind: VerdictKind,
        status: int | None = None,
        code: str = "",
        retry_after: float | None = None,
        sent: bool = True,
        verdict: RequestVerdict | None = None,
        answered: bool = False,
    ) -> None:
        super().__init__(reason)
        self.answered = answered
        self.verdict = verdict or RequestVerdict(kind=kind, reason=reason, billed=False)
        self.reason, self.kind, self.status, self.code, self.retry_after = reason, kind, status, code, retry_after
        self.sent = sent

    @property
    def ambiguous(self) -> bool:
        """True if the call may have been carried out and its answer be lost."""
        return (
            self.sent
            and not self.answered
            and self.kind == "retry"
            and (self.status is None or self.status in (408, 409) or self.status >= 500)
        )

    @property
    def slow_down(self) -> bool:
        """Whether the provider asks all callers to send less."""
        return self.kind == "retry" and self.status in (429, 503, 529)


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchState:
    """A provider batch as one poll shows it. `key` and `input_file` are what it was created with, where the provider
    keeps them."""

    id: str
    state: str
    """The provider's own word for it."""
    done: bool
    failed: bool = False
    """Refused as a whole after its creation: no request was run."""
    total: int = 0
    completed: int = 0
    errored: int = 0
    key: str | None = None
    input_file: str | None = None
    files: tuple[str, ...] = ()
    """Where its results are: file ids, or one URL."""
    errors: tuple[tuple[str, int | None, str], ...] = ()
    """(code, line counted from 1, message) of a refusal."""
    expires: float | None = None
    """When its window ends, seconds of the epoch."""
    lagging: bool = False
    """It is done, but the files of its results are not listed yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallResult:
    """A direct call's verdict. `remaining` (calls) and `reset` (seconds) are the rate limit's, where the response
    states them."""

    verdict: RequestVerdict
    remaining: int | None = None
    reset: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchLimits:
    """What one batch may hold."""

    requests: int
    bytes: int
    endpoint: str
    uploads: bool
    """Its input is a file that is uploaded before the batch is created."""


class Provider(Protocol):
    """A model that answers direct calls. `name` stands in logs and in error messages."""

    name: str

    def request_body(self, request: Request) -> Mapping[str, Any]:
        """The request as the provider's JSON: the same for a batch and for a call. Its canonical form is hashed, so it
        must be a function of the request alone."""
        ...

    async def call(self, request: ProviderRequest) -> CallResult:
        """Send it now, once. Raises ProviderFault."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


@runtime_checkable
class Pingable(Protocol):
    """A provider that can be asked for nothing, to see whether it is there."""

    async def ping(self) -> None:
        """A call that is never billed. Raises ProviderFault; one with a status below 500 is an answer too."""
        ...


@runtime_checkable
class JoinsNeighbours(Protocol):
    """A provider whose bodies can join messages of one side that follow each other, as some servers ask for.
    `in_turn`: they do."""

    in_turn: bool


@runtime_checkable
class KeepsFiles(Protocol):
    """A provider that keeps what is uploaded until it is deleted."""

    async def delete_file(self, file_id: str) -> None:
        """Delete an uploaded file. Raises ProviderFault."""
        ...


class BatchSubmission(Protocol):
    """Creating batches. Each method raises ProviderFault."""

    async def upload(self, path: Path) -> str:
        """Upload an input file; its id."""
        ...

    async def create_batch(self, key: str, path: Path, file_id: str | None) -> BatchState:
        """Create a batch of an input file, once, without any retry."""
        ...

    def list_batches(self) -> AsyncIterator[BatchState]:
        """The account's batches, newest first."""
        ...


class BatchCollection(Protocol):
    """Following batches. Each method raises ProviderFault."""

    async def retrieve_batch(self, batch_id: str) -> BatchState:
        """Poll a batch."""
        ...

    def results(self, state: BatchState) -> AsyncIterator[ResultLine]:
        """The lines of its results as they arrive, in any order."""
        ...

    async def cancel_batch(self, batch_id: str) -> None:
        """Ask for its end; what has been answered is kept."""
        ...


@runtime_checkable
class BatchProvider(Provider, BatchSubmission, BatchCollection, Protocol):
    """A provider that also takes batches."""

    limits: BatchLimits

    def input_line(self, request: ProviderRequest) -> dict[str, Any]:
        """The request as a line of an input file: its `custom_id`, and its body under `body` or `params`."""
        ...


def fault_of(error: Any, secret: str) -> ProviderFault:
    """The fault in an exception of either SDK (their classes have the same names and fields)."""
    status = getattr(error, "status_code", None)
    if status is None:
        return _no_response(error, secret)
    response = error.response
    found = read_error(
        status, response.content or getattr(error, "body", None), retry_after=seconds_of(response.headers)
    )
    verdict = verdict_of_error(found)
    return ProviderFault(
        one_line(verdict.reason + _hint(status, response, found), secret),
        kind=verdict.kind,
        status=status,
        code=next(iter(found.codes), ""),
        retry_after=found.retry_after,
        verdict=verdict,
    )


def _hint(status: int, response: Any, found: WireError) -> str:
    """A guess at what is wrong with an address, or with the way to it: a page instead of the API's error may be a
    proxy's own answer."""
    if 300 <= status < 400:
        target = response.headers.get("location", "nowhere").partition("?")[0]
        return f"; it redirects to {target}: name that address as base_url"
    if status == 404 and "/v1/" not in str(response.request.url):
        return f" ({response.request.url.path}: base_url ends in /v1 at most servers)"
    return "" if found.codes else _through_proxy(str(response.request.url))


def _through_proxy(url: str) -> str:
    """Words on the proxy that stands between here and a server; empty where there is none."""
    proxy = proxy_of(url)
    return f" (asked through the proxy {proxy})" if proxy else ""


def require_answer(reply: WireReply, secret: str) -> RequestVerdict:
    """The verdict of a direct call's reply. Raises ProviderFault where it says that it failed, under status 200."""
    verdict = verdict_of_reply(reply)
    if reply.error is not None:
        raise ProviderFault(
            one_line(verdict.reason, secret),
            kind=verdict.kind,
            status=reply.error.status,
            retry_after=reply.error.retry_after,
            verdict=verdict,
            answered=True,
        )
    return verdict


def unreadable(error: Exception, secret: str) -> ProviderFault:
    """The fault of an answer of status 200 that is none of the format's."""
    why = f"{type(error).__name__}: {error}" if isinstance(error, NotThisFormat) else type(error).__name__
    return ProviderFault(one_line(f"an unreadable answer: {why}", secret), kind="retry")


def _no_response(error: Any, secret: str) -> ProviderFault:
    """The fault of a call without a response. Where not even a connection was made (refused, no such host, no route,
    TLS, the wait for a connection ran out), nothing was sent, so nothing was carried out."""
    import httpx2

    cause = error.__cause__ or error
    unsent = (
        httpx2.ConnectError,
        httpx2.ConnectTimeout,
        httpx2.PoolTimeout,
        httpx2.ProxyError,
        httpx2.UnsupportedProtocol,
    )
    if not isinstance(cause, unsent):
        return ProviderFault(one_line(f"{type(error).__name__}: {error}", secret), kind="retry")
    request = getattr(error, "request", None)
    where = f" to {request.url.netloc.decode()}" if request is not None else ""
    why = (str(cause) or type(cause).__name__) + ("" if request is None else _through_proxy(str(request.url)))
    return ProviderFault(one_line(f"no connection{where}: {why}", secret), kind="retry", sent=False)


def seconds_of(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """The wait that a Retry-After header asks for: seconds, or an HTTP date by the server's own clock."""
    retry_after = headers.get("retry-after")
    if not retry_after:
        return None
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - server_time(headers, now))
    except (TypeError, ValueError):
        return None


def count_of(header: str | None) -> int | None:
    """The whole number in a header; None where there is none."""
    return int(header) if header is not None and header.strip().isdecimal() else None


def server_time(headers: Mapping[str, str], now: float | None = None) -> float:
    """Seconds of the epoch by the server's clock (its Date), which may differ from ours by more than a wait; ours where
    it does not say."""
    try:
        date = (headers.get("date") or "")[-_DATE:]  # the last, where a proxy has put its own before it
        return email.utils.parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return now or time.time()


@dataclass(kw_only=True)
class LineSplitter:
    """Cuts a byte stream into lines at b"\\n" alone: str.splitlines would also cut at U+2028 and U+0085, which JSON
    texts may hold unescaped."""

    _rest: list[bytes] = field(default_factory=list)

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without their ends."""
        *whole, rest = data.split(b"\n")
        if whole:
            whole[0] = b"".join([*self._rest, whole[0]])
            self._rest = []
        self._rest.append(rest)
        return [line.removesuffix(b"\r") for line in whole if line.strip()]

    def end(self) -> bytes:
        """What follows the last line end."""
        rest, self._rest = b"".join(self._rest), []
        return rest if rest.strip() else b""
