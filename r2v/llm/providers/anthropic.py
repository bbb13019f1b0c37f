"""Anthropic provider on the official SDK: messages as direct calls and in Message Batches.

Every call is one attempt (`max_retries=0`). Results are fetched from the API's own host alone: a `results_url` on
another host is refused, because the request would carry the key there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from r2v.errors import EnvironmentFault
from r2v.llm.providers.bodies import message_body
from r2v.llm.providers.keys import announce, made_client, require_key
from r2v.llm.providers.prices import Rate
from r2v.llm.providers.provider import (
    BatchLimits,
    BatchState,
    CallResult,
    LineSplitter,
    count_of,
    fault_of,
    require_answer,
    seconds_of,
    server_time,
    unreadable,
)
from r2v.llm.providers.provider_requests import ProviderRequest, RequestVerdict, ResultLine, with_mark
from r2v.llm.providers.registry.table import own_keys
from r2v.llm.providers.verdicts import anthropic_line, read_line
from r2v.llm.types import Request
from r2v.wire import anthropic as messages
from r2v.wire.message import sendable_json

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

_CHUNK, _PIECE = 1 << 16, 128  # bytes of a read of results; lines of one write of an upload
_HEAD, _TAIL = b'{"requests":[', b"]}"


class Anthropic:
    """One model of Anthropic or of a compatible endpoint; a `BatchProvider`.

    base_url: the endpoint's root; None: ANTHROPIC_BASE_URL, or Anthropic itself. api_key_env: the environment variable
    that holds the key; None: ANTHROPIC_API_KEY. timeout: seconds of one call. keyless: makes bodies and never
    calls. Raises UsageError if no key is set, or if the variable may not be sent as a key.
    """

    name = "anthropic"
    limits = BatchLimits(requests=100_000, bytes=256_000_000, endpoint=messages.MESSAGES_PATH, uploads=False)

    def __init__(
        self,
        rate: Rate,
        *,
        base_url: str | None = None,
        api_key_env: str | None = None,
        timeout: float = 600.0,
        keyless: bool = False,
    ) -> None:
        variable = api_key_env or own_keys()["anthropic"].variable
        self._key = "" if keyless else require_key(variable, base_url)
        self._rate, self._base_url, self._timeout, self._variable = rate, base_url, timeout, variable
        self.in_turn = rate.shape.in_turn
        self._client: AsyncAnthropic | None = None

    def request_body(self, request: Request) -> Mapping[str, Any]:
        """Return the params of a message."""
        return message_body(self._asked, request)

    @property
    def _asked(self) -> Rate:
        return replace(self._rate, shape=replace(self._rate.shape, in_turn=self.in_turn))

    def input_line(self, request: ProviderRequest) -> dict[str, Any]:
        """Return a line of an input file: one element of the create call's list."""
        return {"custom_id": request.custom_id, "params": request.body}

    def kept_line(self, request: ProviderRequest) -> dict[str, Any]:
        """Return the same line with the conversation so far cached for an hour, which most batches do not exceed."""
        return {"custom_id": request.custom_id, "params": with_mark(request.body, ttl="1h")}

    async def call(self, request: ProviderRequest) -> CallResult:
        """Send a request as one direct call."""
        import httpx2

        async with self._faults() as client:
            answer = await client.post(
                messages.MESSAGES_PATH,
                # the next turn comes within seconds and reads the cache at a tenth of the price; a first turn may be
                # the only one, and a cache write costs more than a plain token
                body=with_mark(request.body) if self._rate.shape.cache and request.turn else dict(request.body),
                cast_to=httpx2.Response,
                options={"headers": {"X-R2V-Custom-Id": request.custom_id}},
            )
            remaining = answer.headers.get("anthropic-ratelimit-requests-remaining")
            reset = answer.headers.get("anthropic-ratelimit-requests-reset")
            return CallResult(
                verdict=require_answer(messages.read_reply(sendable_json(answer.json())), self._key),
                remaining=count_of(remaining),
                reset=_until(reset, answer.headers),
            )

    async def ping(self) -> None:
        """Look up the model, which is never billed."""
        async with self._faults() as client:
            await client.models.retrieve(self._rate.model)

    async def upload(self, path: Path) -> str:
        """Raise TypeError: the create call takes the requests themselves, so `limits.uploads` is False."""
        raise TypeError("Message Batches have no input files")

    async def create_batch(self, key: str, path: Path, file_id: str | None) -> BatchState:
        """Create a batch in one attempt, streaming its requests from the input file."""
        from anthropic.types.messages import MessageBatch

        # the file has N lines with N ends, the list N - 1 commas: one byte less
        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(len(_HEAD) + path.stat().st_size - 1 + len(_TAIL)),
        }
        async with self._faults() as client:
            created = await client.post(
                "/v1/messages/batches", content=_payload(path), cast_to=MessageBatch, options={"headers": headers}
            )
            return _state(created.to_dict())

    async def list_batches(self) -> AsyncIterator[BatchState]:
        """Yield all batches of the account, newest first."""
        async with self._faults() as client:
            async for batch in client.messages.batches.list(limit=100):
                yield _state(batch.to_dict())

    async def retrieve_batch(self, batch_id: str) -> BatchState:
        """Return the present state of a batch."""
        async with self._faults() as client:
            return _state((await client.messages.batches.retrieve(batch_id)).to_dict())

    async def results(self, state: BatchState) -> AsyncIterator[ResultLine]:
        """Yield the result lines in the provider's order. Raise EnvironmentFault if they are on another host than the
        API."""
        import httpx2

        splitter = LineSplitter()
        async with self._faults() as client:
            for url in state.files:
                base = urlsplit(str(client.base_url))
                if (urlsplit(url).scheme, urlsplit(url).netloc) != (base.scheme, base.netloc):
                    raise EnvironmentFault(
                        f"batch {state.id}: results_url is on {urlsplit(url).netloc}, the API on "
                        f"{base.netloc}; refused, since the request would carry the key there"
                    )
                # streamed: the results of a full batch exceed what the SDK should hold in memory
                answer = await client.get(
                    url, cast_to=httpx2.Response, options={"headers": {"X-Stainless-Raw-Response": "stream"}}
                )
                try:
                    async for data in answer.aiter_bytes(_CHUNK):
                        for raw in splitter.feed(data):
                            yield read_line(raw, self._line)
                finally:
                    await answer.aclose()
                if rest := splitter.end():
                    yield read_line(rest, self._line)

    def _line(self, row: Mapping[str, Any]) -> RequestVerdict:
        return anthropic_line(row, messages.read_reply)

    async def cancel_batch(self, batch_id: str) -> None:
        """Request the cancellation of a batch."""
        async with self._faults() as client:
            await client.messages.batches.cancel(batch_id)

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    @asynccontextmanager
    async def _faults(self) -> AsyncIterator[AsyncAnthropic]:
        """Yield the client, made on first use; errors of the SDK become ProviderFault."""
        import anthropic
        import httpx2

        if self._client is None:
            # redirects are not followed: they would carry the key to another host
            self._client = made_client(
                lambda trust_env: anthropic.AsyncAnthropic(
                    api_key=self._key,
                    base_url=self._base_url,
                    max_retries=0,  # a silent second attempt could be billed twice
                    timeout=httpx2.Timeout(self._timeout, connect=10.0),
                    http_client=anthropic.DefaultAsyncHttpxClient(
                        follow_redirects=False, trust_env=trust_env
                    ),  # no key elsewhere
                ),
                "anthropic",
                self._base_url,
            )
            announce(self._variable, str(self._client.base_url), "anthropic")
        try:
            yield self._client
        except (anthropic.APIError, httpx2.HTTPError) as error:
            raise fault_of(error, self._key) from None  # the chained text may quote the key
        # a compatible endpoint may answer 200 with any JSON, which fails in the SDK or in our reader
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise unreadable(error, self._key) from None


async def _payload(path: Path) -> AsyncIterator[bytes]:
    """Yield the body of the create call: the input file's lines as a list, `_PIECE` lines per write to the socket."""
    piece = [_HEAD]
    with path.open("rb") as file:
        for number, line in enumerate(file):
            piece += [b",", line.rstrip(b"\n")] if number else [line.rstrip(b"\n")]
            if len(piece) >= _PIECE:
                yield b"".join(piece)
                piece = []
    yield b"".join([*piece, _TAIL])


def _state(batch: Mapping[str, Any]) -> BatchState:
    """Return the state in a Message Batch object."""
    counts = batch.get("request_counts") or {}
    status, url = str(batch.get("processing_status")), batch.get("results_url")
    done = status == "ended"
    return BatchState(
        id=batch["id"],
        state=status,
        done=done,
        total=sum(value or 0 for value in counts.values()),
        completed=counts.get("succeeded") or 0,
        errored=(counts.get("errored") or 0) + (counts.get("expired") or 0),
        files=(url,) if url else (),
        expires=_moment(batch.get("expires_at")),
        lagging=done and not url and not batch.get("archived_at"),  # archived: its results were deleted for good
    )


def _moment(value: Any) -> float | None:
    """Return the Unix time in seconds of an RFC 3339 text or a datetime; None for any other value."""
    try:
        return (value if isinstance(value, datetime) else datetime.fromisoformat(value)).timestamp()
    except (TypeError, ValueError):  # a hint for pacing alone, so a malformed one is ignored
        return None


def _until(reset: str | None, headers: Mapping[str, str]) -> float | None:
    """Return the seconds until an RFC 3339 moment by the server's clock, from which ours may differ by more than the
    wait; without a moment, the Retry-After of the headers."""
    moment = _moment(reset)
    return seconds_of(headers) if moment is None else max(0.0, moment - server_time(headers))
