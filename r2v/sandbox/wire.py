"""Wire format of values and calls between an answer's process and its judge's: lines of JSON.

Numbers, texts, lists, tuples, sets, dicts, dates and similar data are sent by value. Any other object stays in its
process and is represented by a `RemoteObject` on the other side, which can be called, indexed, iterated and asked for
attributes. It equals only itself and supports neither arithmetic nor ordering, so that no method of the answer decides
these. Nothing is evaluated or unpickled.
"""

from __future__ import annotations

import builtins
import json
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, BinaryIO, NoReturn

from r2v.sandbox.plain_values import CONTAINERS, HOLDERS, PACK, UNPACK, plain

MESSAGE = 4 << 20
"""Longest message in bytes."""
_ITEMS = 100_000
"""Largest number of items sent of an iterator."""
_SMALL = 1 << 63
_TAG = "$"
_NAMES = {"__name__", "__qualname__", "__doc__", "__dict__", "__len__", "__call__"}
"""Dunder attributes that a RemoteObject forwards."""
Json = Any


class Broken(BaseException):
    """The other side is gone or sent an invalid message."""


class Unsendable(Exception):
    """A value that is neither data nor callable by the other side."""


class Peer:
    """One end of the two pipes. `serve` carries out the other end's requests."""

    def __init__(self, receive: BinaryIO, send: BinaryIO, serve: Callable[[Peer, dict[str, Json]], Any]) -> None:
        self._receive, self._send, self._serve = receive, send, serve
        self._objects: dict[int, object] = {}
        self._ids: dict[int, int] = {}
        self.names_builtins = False
        """True to send len, int and other built-ins by name; only the answer's end accepts them."""
        self.broken = False
        """True once the other side is gone or sent an invalid message."""
        self.changes: dict[str, Json] = {}
        """Arguments that the last call changed in place: position -> new content."""

    def write(self, message: dict[str, Json]) -> None:
        """Send a message. Raises Broken if the other end is closed, Unsendable if it is too long."""
        line = json.dumps(message, separators=(",", ":")).encode()
        if len(line) >= MESSAGE:
            raise Unsendable("more data than a message holds")
        try:
            self._send.write(line + b"\n")
            self._send.flush()
        except OSError as error:
            self.refuse(str(error))

    def read(self) -> dict[str, Json]:
        """Return the next message. Raises Broken at the end and for an invalid one."""
        line = self._receive.readline(MESSAGE + 1)
        if not line.endswith(b"\n"):
            self.refuse("the end, or more than a message holds")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as error:
            self.refuse(str(error))
        if not isinstance(message, dict):
            self.refuse("no message")
        return message

    def ask(self, action: str, **fields: Json) -> Any:
        """Return the other end's answer, serving its calls meanwhile. Raises the exception raised there."""
        self.write({"ask": action, **fields})
        while "ask" in (message := self.read()):
            self.answer(message)
        if "raised" in message:
            raise _exception(message["raised"])
        self.changes = message.get("changed", {})
        return self.decode(message.get("value"))

    def answer(self, message: dict[str, Json]) -> None:
        """Carry out a request and send its result or exception."""
        try:
            reply = self._serve(self, message)
            self.write(reply)
        except Broken:
            raise
        except BaseException as error:  # the other side's program may raise anything
            self.write({"raised": [type(error).__name__, _message(error)]})

    def encode(self, value: Any) -> Json:
        """Return a value as JSON. Raises Unsendable."""
        if value is None or type(value) in (bool, float, str):
            return value
        if isinstance(value, (float, str)):
            return plain(value)
        if isinstance(value, int):
            number = int.__index__(value)
            return number if -_SMALL < number < _SMALL else {_TAG: "int", "v": hex(number)}
        if isinstance(value, list):
            return [self.encode(item) for item in list.__iter__(value)]
        if isinstance(value, dict):
            return {_TAG: "dict", "v": [[self.encode(key), self.encode(held)] for key, held in dict.items(value)]}
        for kind, name in HOLDERS.items():
            if isinstance(value, kind):
                return {_TAG: name, "v": [self.encode(item) for item in value]}
        if type(value) in PACK:
            name, pack = PACK[type(value)]
            return {_TAG: name, "v": pack(value)}
        return self._reference(value)

    def _reference(self, value: Any) -> Json:
        if isinstance(value, RemoteObject):
            return {_TAG: "yours", "v": hash(value)}  # its number at the end that holds it
        if self.names_builtins:
            name = getattr(value, "__name__", "")
            if getattr(builtins, str(name), None) is value:
                return {_TAG: "builtin", "v": name}
            if isinstance(value, Iterator):
                items = list(islice(value, _ITEMS + 1))
                if len(items) > _ITEMS:
                    raise Unsendable(f"an iterator of more than {_ITEMS} items")
                return {_TAG: "iterator", "v": [self.encode(item) for item in items]}
            if not callable(value) or isinstance(value, type):
                raise Unsendable(f"a {type(value).__name__}, which is no data")
        number = self._ids.setdefault(id(value), len(self._ids))
        self._objects[number] = value
        return {_TAG: "mine", "v": number}

    def held(self, number: Json) -> Any:
        """Return our object with this number. Raises Broken for a number never sent."""
        if type(number) is not int or number not in self._objects:
            self.refuse("no such object")
        return self._objects[number]

    def decode(self, data: Json) -> Any:
        """Return the value of encoded JSON. Raises Broken for an invalid one."""
        try:
            return self._decode(data)
        except (TypeError, ValueError, KeyError, ArithmeticError, RecursionError, AttributeError) as error:
            self.refuse(str(error))

    def _decode(self, data: Json) -> Any:
        if isinstance(data, list):
            return [self._decode(item) for item in data]
        if not isinstance(data, dict):
            return data
        kind, content = data[_TAG], data["v"]
        if kind == "dict":
            return {self._decode(key): self._decode(held) for key, held in content}
        if kind in CONTAINERS:
            return CONTAINERS[kind]([self._decode(item) for item in content])
        if kind == "mine":
            return RemoteObject(self, int(content))
        if kind == "yours":
            return self.held(content)
        if kind == "builtin" and not self.names_builtins:
            return getattr(builtins, content)
        return UNPACK[kind](content)

    def refuse(self, reason: str) -> NoReturn:
        """Mark the connection as broken and raise Broken."""
        self.broken = True
        raise Broken(reason)


class RemoteObject:
    """Proxy of an object in the other process."""

    __slots__ = ("__number", "__peer")
    __peer: Peer
    __number: int

    def __init__(self, peer: Peer, number: int) -> None:
        object.__setattr__(self, "_RemoteObject__peer", peer)
        object.__setattr__(self, "_RemoteObject__number", number)

    def __ask(self, action: str, **fields: Json) -> Any:
        return self.__peer.ask(action, object=self.__number, **fields)

    def __expect(self, kind: type, action: str) -> Any:
        value = self.__ask(action)
        if type(value) is not kind:
            raise TypeError(f"{action} gave no {kind.__name__}")
        return value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        peer, given = self.__peer, [*args, *kwargs.values()]
        value = self.__ask("call", args=[peer.encode(item) for item in given], names=list(kwargs))
        for index, changed in peer.changes.items():
            _restore(given[int(index)], peer.decode(changed))
        return value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in _NAMES:
            raise AttributeError(name)
        return self.__ask("attribute", name=name)

    def __setattr__(self, name: str, value: Any) -> None:
        self.__ask("set attribute", name=name, value=self.__peer.encode(value))

    def __getitem__(self, key: Any) -> Any:
        return self.__ask("item", key=self.__peer.encode(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        self.__ask("set item", key=self.__peer.encode(key), value=self.__peer.encode(value))

    def __delitem__(self, key: Any) -> None:
        self.__ask("delete item", key=self.__peer.encode(key))

    def __iter__(self) -> Iterator[Any]:
        return iter(_items(self.__ask("iterator")))

    def __next__(self) -> Any:
        item = self.__ask("next")
        if item is None:
            raise StopIteration
        return item[0]

    def __len__(self) -> int:
        return int(self.__expect(int, "length"))

    def __bool__(self) -> bool:
        return bool(self.__expect(bool, "truth"))

    def __str__(self) -> str:
        return str(self.__expect(str, "text"))

    def __repr__(self) -> str:
        return str(self.__expect(str, "representation"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteObject) and self.__number == other.__number

    def __hash__(self) -> int:
        return self.__number


def _items(iterator: Any) -> Iterator[Any]:
    """Yield the items of a remote iterator. Raises TypeError for anything else."""
    if not isinstance(iterator, RemoteObject):
        raise TypeError("not an iterator")
    while True:
        try:
            yield next(iterator)
        except StopIteration:
            return


def _message(error: BaseException) -> str:
    try:
        return str(error)[:1000]
    except BaseException:  # __str__ is the program's code too
        return ""


def _exception(data: Json) -> Exception:
    """Return the built-in exception of this name, or a RuntimeError that names another one."""
    name, message = (str(part) for part in data) if isinstance(data, list) and len(data) == 2 else ("?", "?")
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(message)
        except TypeError:
            pass
    return RuntimeError(f"{name}: {message}")


def _restore(given: Any, changed: Any) -> None:
    """Replace the content of a list, set, dict or the like by that of the other side's changed copy."""
    if isinstance(given, (list, bytearray)):
        given[:] = changed
    elif isinstance(given, (dict, set)):
        given.clear()
        given.update(changed)
    elif isinstance(given, deque):
        given.clear()
        given.extend(changed)
