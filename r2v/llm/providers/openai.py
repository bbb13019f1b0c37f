"""OpenAI provider on the official SDK: chat completions or responses as direct calls and in batches of uploaded files.

Every call is one attempt (`max_retries=0`): after a lost confirmation the SDK would create a second batch, because it
sends no idempotency key. The API key comes from the environment and goes to one host: redirects are not followed.

With `base_url` the same client calls any OpenAI-compatible endpoint (vLLM, Ollama, OpenRouter, a proxy).
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r2v.llm.providers.bodies import chat_body, response_body
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
    unreadable,
)
from r2v.llm.providers.provider_requests import ProviderRequest, RequestVerdict, ResultLine
from r2v.llm.providers.registry.table import own_keys
from r2v.llm.providers.verdicts import openai_line, read_line
from r2v.llm.types import Request
from r2v.wire import chat, responses
from r2v.wire.exchange import WireReply
from r2v.wire.message import sendable_json

if TYPE_CHECKING:
    from openai import AsyncOpenAI

BATCH_KEY_METADATA = "r2v_batch"
"""Metadata field of a batch with R2V's key for it, by which an unconfirmed batch is found again."""
_ENDED = ("completed", "failed", "expired", "cancelled")
_CHUNK = 1 << 16  # bytes of one read of a results file
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class OpenAI:
    """One model of OpenAI or of a compatible endpoint; a `BatchProvider`.

    base_url: the endpoint's root, such as http://localhost:8000/v1; None: OPENAI_BASE_URL, or OpenAI itself.
    api_key_env: the environment variable that holds the key; None: OPENAI_API_KEY. timeout: seconds of one call.
    keyless: makes bodies and never calls. key: the key of R2V's own server, in place of a variable. Raises UsageError
    if no key is set, or if the variable may not be sent as a key.
    """

    name = "openai"
    limits = BatchLimits(requests=50_000, bytes=200_000_000, endpoint=chat.CHAT_PATH, uploads=True)

    def __init__(
        self,
        rate: Rate,
        *,
        base_url: str | None = None,
        api_key_env: str | None = None,
        timeout: float = 600.0,
        keyless: bool = False,
        key: str | None = None,
    ) -> None:
        variable = api_key_env or own_keys()["openai"].variable
        self._key = key or ("" if keyless else require_key(variable, base_url))
        self._is_own = key is not None
        self._rate, self._base_url, self._timeout, self._variable = rate, base_url, timeout, variable
        self.in_turn = rate.shape.in_turn
        if rate.shape.responses:
            self.limits = replace(self.limits, endpoint=responses.RESPONSES_PATH)
        self._client: AsyncOpenAI | None = None

    def request_body(self, request: Request) -> Mapping[str, Any]:
        """Return the body of a chat completion, or of a call of the Responses API for models that need it."""
        body = response_body if self._rate.shape.responses else chat_body
        return body(self._asked, request)

    @property
    def _asked(self) -> Rate:
        return replace(self._rate, shape=replace(self._rate.shape, in_turn=self.in_turn))

    def input_line(self, request: ProviderRequest) -> dict[str, Any]:
        """Return a line of an input file."""
        return {"custom_id": request.custom_id, "method": "POST", "url": self.limits.endpoint, "body": request.body}

    async def call(self, request: ProviderRequest) -> CallResult:
        """Send a request as one direct call."""
        import httpx2

        async with self._faults() as client:
            # the raw response: its headers hold the rate limit, and `r2v.wire` reads the bodies of more servers
            answer = await client.post(
                self.limits.endpoint.removeprefix("/v1"),
                body=dict(request.body),
                cast_to=httpx2.Response,
                options={"headers": {"X-R2V-Custom-Id": request.custom_id}},
            )
            remaining = answer.headers.get("x-ratelimit-remaining-requests")
            reset = answer.headers.get("x-ratelimit-reset-requests")
            return CallResult(
                verdict=require_answer(self._read(sendable_json(answer.json())), self._key),
                remaining=count_of(remaining),
                reset=duration(reset) if reset else None,
            )

    async def ping(self) -> None:
        """Look up the model, which is never billed."""
        async with self._faults() as client:
            await client.models.retrieve(self._rate.model)

    async def upload(self, path: Path) -> str:
        """Upload an input file as a stream and return its id."""
        async with self._faults() as client:
            with path.open("rb") as file:
                return (await client.files.create(file=file, purpose="batch")).id

    async def delete_file(self, file_id: str) -> None:
        """Delete an uploaded file."""
        async with self._faults() as client:
            await client.files.delete(file_id)

    async def create_batch(self, key: str, path: Path, file_id: str | None) -> BatchState:
        """Create a batch of an uploaded file in one attempt."""
        assert file_id is not None
        async with self._faults() as client:
            created = await client.batches.create(
                input_file_id=file_id,
                endpoint="/v1/responses" if self._rate.shape.responses else "/v1/chat/completions",
                completion_window="24h",
                metadata={BATCH_KEY_METADATA: key},
            )
            return _state(created.to_dict())

    async def list_batches(self) -> AsyncIterator[BatchState]:
        """Yield all batches of the account, newest first."""
        async with self._faults() as client:
            async for batch in client.batches.list(limit=100):
                yield _state(batch.to_dict())

    async def retrieve_batch(self, batch_id: str) -> BatchState:
        """Return the present state of a batch."""
        async with self._faults() as client:
            return _state((await client.batches.retrieve(batch_id)).to_dict())

    async def results(self, state: BatchState) -> AsyncIterator[ResultLine]:
        """Yield the lines of the output file and of the error file, in the provider's order."""
        for file_id in state.files:
            splitter = LineSplitter()
            async with self._faults() as client, client.files.with_streaming_response.content(file_id) as answer:
                async for data in answer.iter_bytes(_CHUNK):
                    for raw in splitter.feed(data):
                        yield read_line(raw, self._line)
            if rest := splitter.end():
                yield read_line(rest, self._line)

    def _read(self, body: Any) -> WireReply:
        return responses.read_reply(body) if self._rate.shape.responses else chat.read_reply(body)

    def _line(self, row: Mapping[str, Any]) -> RequestVerdict:
        return openai_line(row, self._read)

    async def cancel_batch(self, batch_id: str) -> None:
        """Request the cancellation of a batch."""
        async with self._faults() as client:
            await client.batches.cancel(batch_id)

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    @asynccontextmanager
    async def _faults(self) -> AsyncIterator[AsyncOpenAI]:
        """Yield the client, made on first use; errors of the SDK become ProviderFault."""
        import httpx2
        import openai

        if self._client is None:
            # redirects are not followed: they would carry the key to another host
            self._client = made_client(
                lambda trust_env: openai.AsyncOpenAI(
                    api_key=self._key,
                    base_url=self._base_url,
                    max_retries=0,  # a silent second attempt could be billed twice
                    timeout=httpx2.Timeout(self._timeout, connect=10.0),
                    http_client=openai.DefaultAsyncHttpxClient(follow_redirects=False, trust_env=trust_env),
                ),
                "openai",
                self._base_url,
            )
            if not self._is_own:
                announce(self._variable, str(self._client.base_url), "openai")
        try:
            yield self._client
        except (openai.APIError, httpx2.HTTPError) as error:
            raise fault_of(error, self._key) from None  # the chained text may quote the key
        # a compatible endpoint may answer 200 with any JSON, which fails in the SDK or in our reader
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise unreadable(error, self._key) from None


def _state(batch: Mapping[str, Any]) -> BatchState:
    """Return the batch object of the API as a `BatchState`: status, counts, files of answers and errors, expiry."""
    status, counts = str(batch.get("status")), batch.get("request_counts") or {}
    completed, failed = counts.get("completed") or 0, counts.get("failed") or 0
    output, errors = batch.get("output_file_id") or None, batch.get("error_file_id") or None
    data = (batch.get("errors") or {}).get("data") or ()
    return BatchState(
        id=batch["id"],
        state=status,
        done=status in _ENDED,
        failed=status == "failed",
        total=counts.get("total") or 0,
        completed=completed,
        errored=failed,
        key=(batch.get("metadata") or {}).get(BATCH_KEY_METADATA),
        input_file=batch.get("input_file_id"),
        files=tuple(file for file in (output, errors) if file is not None),
        errors=tuple((str(e.get("code")), e.get("line"), str(e.get("message"))) for e in data),
        expires=batch.get("expires_at"),
        # the ids of the files may be listed later than the state
        lagging=status == "completed" and bool((completed and not output) or (failed and not errors)),
    )


def duration(text: str) -> float:
    """Return the seconds of a duration in the notation of OpenAI's rate-limit headers.

    >>> duration("6m0s"), duration("120ms")
    (360.0, 0.12)
    """
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION.findall(text))
