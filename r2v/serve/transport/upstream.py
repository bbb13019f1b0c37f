"""HTTP client to the endpoints: a request is sent once, and its reply is read as it arrives.

aiohttp instead of the SDKs' httpx2: its parser returns all received bytes as one piece, which takes a third of the CPU
for a stream of many small events.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import zstandard
from yarl import URL

from r2v.config import ServeConfig
from r2v.serve.transport.body import WINDOWS

_LONGEST_HEADER = 1 << 16
"""Limit in bytes on a line of the reply's headers; aiohttp's default of 8 KiB is too short for some."""
_CONNECT_SECONDS = 10.0
"""Limit on connecting; a host that takes longer counts as down."""
_FIRST_BYTE_SECONDS = 600.0
"""Limit on the wait for a reply's headers, as in the providers' SDKs."""


class NotSent(Exception):
    """No connection was made: the request was not sent, and nothing is billed."""


class BrokenOff(Exception):
    """The connection broke, or was silent for too long, after the request may have arrived."""


class Upstream:
    """The connections of a server to its endpoints."""

    def __init__(self, settings: ServeConfig) -> None:
        self._settings = settings

    async def __aenter__(self) -> Upstream:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=15),
            timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=_CONNECT_SECONDS),
            auto_decompress=False,  # bytes pass to the client in the encoding that it accepts
            trust_env=True,
            max_line_size=_LONGEST_HEADER,
            max_field_size=_LONGEST_HEADER,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            cookie_jar=aiohttp.DummyCookieJar(),  # clients share the connections and must not share cookies
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    @asynccontextmanager
    async def post(
        self, url: str, headers: list[tuple[str, str]], body: bytes
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request, and yield its reply once the headers have arrived. Raises NotSent and BrokenOff."""
        sending = self._session.post(URL(url, encoded=True), headers=headers, data=body, allow_redirects=False)
        try:
            async with asyncio.timeout(_FIRST_BYTE_SECONDS):
                response = await sending
        except aiohttp.ClientConnectorError as error:
            raise NotSent(f"no connection to {error.host}:{error.port} ({error.os_error.strerror})") from None
        except (aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as error:
            raise NotSent(f"no connection within {_CONNECT_SECONDS:g} s ({error})") from None
        except TimeoutError:
            raise BrokenOff(f"no reply within {_FIRST_BYTE_SECONDS:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise BrokenOff(f"the connection broke ({type(error).__name__}: {error!s:.100})") from None
        try:
            yield response
        finally:
            response.close()

    async def pieces(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises BrokenOff if it breaks off or is silent for `serve.idle_seconds`."""
        idle = self._settings.idle_seconds
        stream = response.content
        try:
            while not stream.at_eof():
                async with asyncio.timeout(idle):
                    piece = await stream.readany()
                if piece:
                    yield piece
        except TimeoutError:
            raise BrokenOff(f"silent for serve.idle_seconds={idle:g}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise BrokenOff(f"the reply broke off ({type(error).__name__}: {error!s:.100})") from None


class Decoder:
    """Decodes the pieces of a body by the content-encoding of its reply."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        encoding = response.headers.get("content-encoding", "").strip().lower()
        self._is_plain = encoding in ("", "identity")
        self._reader: Any = None
        if encoding in WINDOWS:
            self._reader = zlib.decompressobj(WINDOWS[encoding])
        elif encoding == "zstd":
            self._reader = zstandard.ZstdDecompressor().decompressobj()

    def __call__(self, piece: bytes) -> bytes:
        """Return the decoded piece; empty if it cannot be decoded."""
        if self._is_plain:
            return piece
        try:
            return b"" if self._reader is None else bytes(self._reader.decompress(piece))
        except (zlib.error, zstandard.ZstdError):  # the client gets the bytes all the same, and the usage is unknown
            return b""
