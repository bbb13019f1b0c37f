"""Provider protocols: direct calls and batches of one model, and the faults of a call.

A provider of direct calls implements the three methods of `Provider`; a class from outside R2V needs no more
(docs/extending/provider.md). A provider that also takes batches implements `BatchProvider`.

Every method is one attempt and never retries; retries are the dispatcher's decision. A fault is `ambiguous` if the
provider may have carried out the call all the same, because sending that call again may be paying twice.
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

# a proxy may prepend its own Date, so the last one of a joined header is read, by its fixed length
_DATE = len("Sun, 06 Nov 1994 08:49:37 GMT")


class ProviderFault(Exception):
    """A call without a usable answer.

    status: the HTTP status; None without a response (reset, timeout). answered: a reply arrived and reports a failure.
    verdict: the outcome for the request. sent: False if no connection was made, so that nothing can have been carried
    out or billed. retry_after: seconds to wait, as the provider asks.
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
        """True if the call may have been carried out although its answer was lost."""
        # 408 and 409 can follow an accepted call, and so can any error of the server or of a proxy before it
        return (
            self.sent
            and not self.answered
            and self.kind == "retry"
            and (self.status is None or self.status in (408, 409) or self.status >= 500)
        )

    @property
    def slow_down(self) -> bool:
        """True if the provider asks all callers to send less."""
        return self.kind == "retry" and self.status in (429, 503, 529)


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchState:
    """The state of a provider batch at one poll. `key` and `input_file`: R2V's key and the file it was created with, if
    the provider keeps them."""

    id: str
    state: str
    """The provider's own name of the state."""
    done: bool
    failed: bool = False
    """Refused as a whole after its creation; no request was run."""
    total: int = 0
    completed: int = 0
    errored: int = 0
    key: str | None = None
    input_file: str | None = None
    files: tuple[str, ...] = ()
    """Locations of its results: file ids, or one URL."""
    errors: tuple[tuple[str, int | None, str], ...] = ()
    """(code, line counted from 1, message) of a refusal."""
    expires: float | None = None
    """End of its window, Unix time in seconds."""
    lagging: bool = False
    """True if it is done, but its result files are not listed yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallResult:
    """The verdict of a direct call. `remaining` (calls) and `reset` (seconds): the rate limit, if the response states
    it."""

    verdict: RequestVerdict
    remaining: int | None = None
    reset: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchLimits:
    """Largest size of one batch, and the endpoint of its requests."""

    requests: int
    bytes: int
    endpoint: str
    uploads: bool
    """True if the input is a file uploaded before the batch is created."""


class Provider(Protocol):
    """A model that answers direct calls. `name`: for logs and error messages."""

    name: str

    def request_body(self, request: Request) -> Mapping[str, Any]:
        """Return the request as the provider's JSON, equal for batches and calls. Its canonical form is hashed, so it
        must be a function of the request alone."""
        ...

    async def call(self, request: ProviderRequest) -> CallResult:
        """Send a request as one direct call. Raise ProviderFault."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


@runtime_checkable
class Pingable(Protocol):
    """A provider with a free call that shows whether it is reachable."""

    async def ping(self) -> None:
        """Make a call that is never billed. Raise ProviderFault; a status below 500 also shows a reachable provider."""
        ...


@runtime_checkable
class JoinsNeighbours(Protocol):
    """A provider that can join consecutive messages of one side, which some servers refuse. `in_turn`: it joins
    them."""

    in_turn: bool


@runtime_checkable
class KeepsFiles(Protocol):
    """A provider that keeps uploaded files until they are deleted."""

    async def delete_file(self, file_id: str) -> None:
        """Delete an uploaded file. Raise ProviderFault."""
        ...


class BatchSubmission(Protocol):
    """Creation of batches. Each method raises ProviderFault."""

    async def upload(self, path: Path) -> str:
        """Upload an input file and return its id."""
        ...

    async def create_batch(self, key: str, path: Path, file_id: str | None) -> BatchState:
        """Create a batch of an input file in one attempt."""
        ...

    def list_batches(self) -> AsyncIterator[BatchState]:
        """Yield the account's batches, newest first."""
        ...


class BatchCollection(Protocol):
    """Polling and results of batches. Each method raises ProviderFault."""

    async def retrieve_batch(self, batch_id: str) -> BatchState:
        """Return the present state of a batch."""
        ...

    def results(self, state: BatchState) -> AsyncIterator[ResultLine]:
        """Yield the lines of its results as they arrive, in any order."""
        ...

    async def cancel_batch(self, batch_id: str) -> None:
        """Request its cancellation; results so far are kept."""
        ...


@runtime_checkable
class BatchProvider(Provider, BatchSubmission, BatchCollection, Protocol):
    """A provider that also takes batches."""

    limits: BatchLimits

    def input_line(self, request: ProviderRequest) -> dict[str, Any]:
        """Return the request as a line of an input file: its `custom_id`, and its body under `body` or `params`."""
        ...


def fault_of(error: Any, secret: str) -> ProviderFault:
    """Return the fault of an exception of either SDK, whose classes have the same names and fields."""
    status = getattr(error, "status_code", None)
    if status is None:
        return _no_response(error, secret)
    response = error.response
    wire_error = read_error(
        status, response.content or getattr(error, "body", None), retry_after=seconds_of(response.headers)
    )
    verdict = verdict_of_error(wire_error)
    return ProviderFault(
        one_line(verdict.reason + _hint(status, response, wire_error), secret),
        kind=verdict.kind,
        status=status,
        code=next(iter(wire_error.codes), ""),
        retry_after=wire_error.retry_after,
        verdict=verdict,
    )


def _hint(status: int, response: Any, error: WireError) -> str:
    """Return a hint at a wrong address or a proxy: a page instead of the API's error may be the proxy's own answer."""
    if 300 <= status < 400:
        target = response.headers.get("location", "nowhere").partition("?")[0]
        return f"; it redirects to {target}: name that address as base_url"
    if status == 404 and "/v1/" not in str(response.request.url):
        return f" ({response.request.url.path}: base_url ends in /v1 at most servers)"
    return "" if error.codes else _through_proxy(str(response.request.url))


def _through_proxy(url: str) -> str:
    """Return words that name the proxy of a URL; empty without one."""
    proxy = proxy_of(url)
    return f" (asked through the proxy {proxy})" if proxy else ""


def require_answer(reply: WireReply, secret: str) -> RequestVerdict:
    """Return the verdict of a direct call's reply. Raise ProviderFault if it reports an error under status 200."""
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
    """Return the fault of an answer of status 200 in another format than the API's."""
    why = f"{type(error).__name__}: {error}" if isinstance(error, NotThisFormat) else type(error).__name__
    return ProviderFault(one_line(f"an unreadable answer: {why}", secret), kind="retry")


def _no_response(error: Any, secret: str) -> ProviderFault:
    """Return the fault of a call without a response. Without a connection (refused, unknown host, no route, TLS, no
    free connection in time) nothing was sent, so nothing can be billed."""
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
    """Return the seconds of a Retry-After header, a number or an HTTP date by the server's clock; None without one."""
    retry_after = headers.get("retry-after")
    if not retry_after:
        return None
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass  # the header's other form, a date
    try:
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - server_time(headers, now))
    except (TypeError, ValueError):
        return None


def count_of(header: str | None) -> int | None:
    """Return the whole number in a header; None without one."""
    return int(header) if header is not None and header.strip().isdecimal() else None


def server_time(headers: Mapping[str, str], now: float | None = None) -> float:
    """Return the Unix time in seconds by the server's Date, from which ours may differ by more than a wait; our own
    time without one."""
    try:
        date = (headers.get("date") or "")[-_DATE:]
        return email.utils.parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return now or time.time()


@dataclass(kw_only=True)
class LineSplitter:
    """Splitter of a byte stream at b"\\n" alone: str.splitlines also splits at U+2028 and U+0085, which JSON texts may
    hold unescaped."""

    _rest: list[bytes] = field(default_factory=list)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines completed by this data, without their ends."""
        *whole, rest = data.split(b"\n")
        if whole:
            whole[0] = b"".join([*self._rest, whole[0]])
            self._rest = []
        self._rest.append(rest)
        return [line.removesuffix(b"\r") for line in whole if line.strip()]

    def end(self) -> bytes:
        """Return the bytes after the last line end; empty if blank."""
        rest, self._rest = b"".join(self._rest), []
        return rest if rest.strip() else b""
