"""Headers between client, server and provider: all pass, except hop-by-hop headers and credentials.

Headers are raw pairs, because a mapping would join or drop repeated ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Headers = list[tuple[bytes, bytes]]

_HOP_BY_HOP = {
    b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect",
    b"http2-settings",
}  # fmt: skip
CREDENTIALS = {b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key", b"cookie", b"proxy-authorization"}
"""Credentials of a client. They are for this server and are never forwarded."""
_REPLACED = {b"host", b"content-length", b"accept-encoding", b"x-r2v-session"}
_READABLE = ("gzip", "deflate", "zstd", "identity")
"""Content encodings that `Decoder` reads, for the usage in a reply."""


def to_provider(client: Iterable[tuple[bytes, bytes]], key: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the headers to send upstream: those of the client, with the provider's key in place of its credentials."""
    client = list(client)
    named = {
        word.strip().lower() for name, value in client if name.lower() == b"connection" for word in value.split(b",")
    }
    # a header named in Connection is hop-by-hop too (RFC 9110, section 7.6.1)
    left_out = _HOP_BY_HOP | CREDENTIALS | _REPLACED | named
    passed = [(name.decode("latin-1"), _text(value)) for name, value in client if name.lower() not in left_out]
    return [*passed, ("accept-encoding", _encodings(client)), *key.items()]


def _text(value: bytes) -> str:
    try:
        return value.decode()  # the HTTP client writes UTF-8
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _encodings(client: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the accept-encoding to send: the encodings of the client that can be decoded here."""
    words = [
        word.strip()
        for name, value in client
        if name.lower() == b"accept-encoding"
        for word in value.decode("latin-1").split(",")
    ]
    return ", ".join(word for word in words if word.partition(";")[0].strip().lower() in _READABLE) or "identity"


def to_client(provider: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the response headers to pass to the client."""
    # cookies and alternative addresses are the provider's, for a client that talks to it directly
    left_out = _HOP_BY_HOP | {b"set-cookie", b"alt-svc", b"content-length"}
    return [(name, value) for name, value in provider if name.lower() not in left_out]


def first(headers: Iterable[tuple[bytes, bytes]], name: str) -> str:
    """Return the first value of a header, or an empty string."""
    encoded = name.lower().encode()
    return next((value.decode("latin-1") for key, value in headers if key.lower() == encoded), "")
