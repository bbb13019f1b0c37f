"""Request bodies with edits that leave all other bytes unchanged.

    body = RequestBody(raw, longest=1 << 25)
    body.values["model"]
    body.sent(model="gpt-6-luna")        # the same bytes except the value of `model`

Parsing a body and writing it again would change numbers, spaces and key order, which breaks prompt caches. An edit
therefore replaces the byte span of one value.
"""

from __future__ import annotations

import json
import re
import sys
import zlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import zstandard

from r2v.wire.message import mapping

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()
_DEEPEST = 200
"""Nesting limit of a body, below the recursion limit of its readers."""


class Unreadable(ValueError):
    """The body cannot be decoded to a JSON object. The message is sent to the client."""


class RequestBody:
    """Body of a client's request.

    encoding: the content-encoding header. longest: limit in bytes after decoding. Raises Unreadable.
    """

    def __init__(self, raw: bytes, encoding: str = "", *, longest: int) -> None:
        self.raw, self._encoding = raw, encoding.strip().lower()
        self.plain = _unpacked(raw, self._encoding, longest)
        try:
            self._text = self.plain.decode()
        except UnicodeDecodeError as error:
            raise Unreadable(f"the body is no UTF-8 (byte {error.start})") from None
        self.values, self._spans = _top_level(self._text)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> RequestBody:
        """Return a body with the values as JSON."""
        return cls(json.dumps(values, ensure_ascii=False).encode(errors="replace"), longest=sys.maxsize)

    def sent(self, *, model: str | None = None, with_usage: bool = False) -> tuple[bytes, tuple[str, ...]]:
        """Return the bytes to send and the names of the changed fields.

        model: replaces the client's model. with_usage: ask Chat Completions for the usage at the end of the stream.
        """
        edits: list[tuple[int, int, str]] = []
        changed = []
        if model is not None and model != self.values.get("model"):
            edits += [(start, end, json.dumps(model)) for start, end in self._spans["model"]]
            changed.append("model")
        if with_usage and not self.asks_usage:
            edits.append(self._usage_edit())
            changed.append("stream_options.include_usage")
        if not edits:
            return self.raw, ()
        text = self._text
        for start, end, new in sorted(edits, reverse=True):  # from the end, so that earlier spans stay valid
            text = text[:start] + new + text[end:]
        return _packed(text.encode(), self._encoding), tuple(changed)

    @property
    def asks_usage(self) -> bool:
        """True if the client asked for the usage at the end of a stream."""
        return mapping(self.values.get("stream_options")).get("include_usage") is True

    def _usage_edit(self) -> tuple[int, int, str]:
        if "stream_options" in self._spans:
            start, end = self._spans["stream_options"][-1]
            return start, end, json.dumps({**mapping(self.values["stream_options"]), "include_usage": True})
        end = self._text.rindex("}")
        return end, end, ("," if self.values else "") + '"stream_options":{"include_usage":true}'

    @cached_property
    def streams(self) -> bool:
        """True if the client asked for a stream."""
        return self.values.get("stream") is True

    @cached_property
    def model(self) -> str:
        """Model named by the client."""
        return str(self.values.get("model") or "")


def _top_level(text: str) -> tuple[dict[str, Any], dict[str, list[tuple[int, int]]]]:
    """Return the members of a JSON object and the span of each value. Raises Unreadable."""
    values: dict[str, Any] = {}
    spans: dict[str, list[tuple[int, int]]] = {}
    # by hand, because json reports no positions of values and keeps one of repeated names
    try:
        at = _after(text, 0)
        if text[at : at + 1] != "{":
            raise Unreadable("the body is no JSON object")
        at = _after(text, at + 1)
        while text[at : at + 1] != "}":
            if text[at : at + 1] != '"':
                raise Unreadable(f"the body is no JSON: a name is missing at character {at}")
            name, at = _DECODER.raw_decode(text, at)
            at = _after(text, at)
            if text[at : at + 1] != ":":
                raise Unreadable(f"the body is no JSON: ':' is missing at character {at}")
            start = _after(text, at + 1)
            values[name], end = _DECODER.raw_decode(text, start)
            spans.setdefault(name, []).append((start, end))
            at = _after(text, end)
            if text[at : at + 1] == ",":
                at = _after(text, at + 1)
                if text[at : at + 1] == "}":
                    raise Unreadable("the body is no JSON: nothing follows its last comma")
            elif text[at : at + 1] != "}":
                raise Unreadable(f"the body is no JSON: ',' or '}}' is missing at character {at}")
        if text[at + 1 :].strip(" \t\r\n"):
            raise Unreadable(f"the body goes on behind its object, at character {at + 1}")
    except RecursionError:
        raise Unreadable("the body is nested too deeply") from None
    except Unreadable:
        raise
    except ValueError as error:
        raise Unreadable(f"the body is no JSON: {str(error):.100}") from None
    if _deeper(values, _DEEPEST):
        raise Unreadable(f"the body is nested deeper than {_DEEPEST} levels")
    return values, spans


def _after(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _deeper(value: Any, levels: int) -> bool:
    """True if a value is nested deeper than `levels`. Iterative, so that hostile input cannot exhaust the stack."""
    layer = [value]
    for _ in range(levels):
        layer = [
            inner
            for node in layer
            for inner in (node.values() if isinstance(node, dict) else node)
            if isinstance(inner, (dict, list))
        ]
        if not layer:
            return False
    return True


def _unpacked(raw: bytes, encoding: str, longest: int) -> bytes:
    """Decode the body in bounded memory. Raises Unreadable."""
    if encoding in ("", "identity"):
        return raw
    if encoding not in WINDOWS and encoding != "zstd":
        raise Unreadable(f"content-encoding {encoding:.40}: allowed: {', '.join((*WINDOWS, 'zstd'))}, or none")
    try:
        if encoding == "zstd":  # the window is bounded, because a frame may ask for gigabytes
            with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(raw) as reader:
                plain = reader.read(longest + 1)
        else:
            plain = zlib.decompressobj(WINDOWS[encoding]).decompress(raw, longest + 1)
    except (zlib.error, zstandard.ZstdError, MemoryError):
        raise Unreadable(f"the body is no {encoding}, which its content-encoding says") from None
    if len(plain) > longest:
        raise Unreadable(f"the body unpacks to more than {longest} bytes")
    return plain


def _packed(plain: bytes, encoding: str) -> bytes:
    if encoding in ("", "identity"):
        return plain
    if encoding == "zstd":
        return zstandard.ZstdCompressor().compress(plain)
    packer = zlib.compressobj(wbits=WINDOWS[encoding])
    return packer.compress(plain) + packer.flush()


WINDOWS = {"gzip": 31, "deflate": 15}
"""Encoding -> zlib window bits; 31 is 15 with a gzip header."""
