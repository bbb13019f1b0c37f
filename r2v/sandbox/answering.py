"""Process of an answer's program. It sees the arguments of calls, never a test."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable
from operator import delitem, setitem
from types import ModuleType
from typing import Any

from r2v.sandbox.wire import Json, Peer

_MUTABLE = (list, dict, set, bytearray, deque)


def main(data: dict[str, Any]) -> None:
    """Run the program `data["code"]`, then serve requests for its names until the judge ends."""
    receive, send = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    module = sys.modules["__main__"] = ModuleType("__main__")
    peer = Peer(receive, send, lambda peer, request: _serve(peer, request, module))
    peer.write({"value": "started"})
    try:
        exec(compile(data["code"], "answer", "exec", dont_inherit=True), module.__dict__)
    except BaseException:  # a program that raises anything, SystemExit included, has failed
        peer.write({"value": "failed"})
        os._exit(1)
    peer.write({"value": "loaded"})
    while True:
        peer.answer(peer.read())


def _serve(peer: Peer, request: dict[str, Json], module: ModuleType) -> dict[str, Json]:
    """Return the reply to a request."""
    if request["ask"] == "name":
        return {"value": peer.encode(module.__dict__[request["name"]])}
    target = peer.held(request["object"])
    if request["ask"] == "call":
        return _call(peer, target, request)
    return {"value": _ACTIONS[request["ask"]](peer, target, request)}


def _call(peer: Peer, function: Any, request: dict[str, Json]) -> dict[str, Json]:
    """Call the function and return its value and the arguments that it changed in place."""
    names = request["names"]
    given = [peer.decode(item) for item in request["args"]]
    count = len(given) - len(names)
    value = function(*given[:count], **dict(zip(names, given[count:], strict=True)))
    changed = {
        str(index): after
        for index, item in enumerate(given)
        if isinstance(item, _MUTABLE) and (after := peer.encode(item)) != request["args"][index]
    }
    return {"value": peer.encode(value), "changed": changed}


def _next(peer: Peer, target: Any, request: dict[str, Json]) -> Json:
    """Return the next item as a list of one, None at the end."""
    try:
        return [peer.encode(next(target))]
    except StopIteration:
        return None


_ACTIONS: dict[str, Callable[[Peer, Any, dict[str, Json]], Json]] = {
    "attribute": lambda peer, target, request: peer.encode(getattr(target, request["name"])),
    "set attribute": lambda peer, target, request: setattr(target, request["name"], peer.decode(request["value"])),
    "item": lambda peer, target, request: peer.encode(target[peer.decode(request["key"])]),
    "set item": lambda peer, target, request: setitem(
        target, peer.decode(request["key"]), peer.decode(request["value"])
    ),
    "delete item": lambda peer, target, request: delitem(target, peer.decode(request["key"])),
    "iterator": lambda peer, target, request: peer.encode(iter(target)),
    "next": _next,
    "length": lambda peer, target, request: len(target),
    "truth": lambda peer, target, request: bool(target),
    "text": lambda peer, target, request: peer.encode(str(target)),
    "representation": lambda peer, target, request: peer.encode(repr(target)),
}
