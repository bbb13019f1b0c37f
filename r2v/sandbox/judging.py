"""Process of the judge, which runs a problem's tests against the answer's process.

A name that the tests neither define nor import, and that is not built in, is the answer's. A standard module that they
use without importing it (`math.isclose`) is the judge's own, never an object of the answer. The verdict goes to a pipe
that no other process holds.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import os
import sys
from typing import Any

from r2v.sandbox.wire import Broken, Json, Peer, Unsendable

UP, PASSED, FAILED, ABSENT, UNFIT = "up", "passed", "failed", "absent", "unfit"
"""Lines of the verdict: the judge runs; the tests passed or failed; the answer's process never started; the tests pass
the answer a value that cannot be sent."""


def main(data: dict[str, Any]) -> None:
    """Run the tests `data["tests"]` and write the verdict to the descriptor `data["verdict"]`."""
    peer = Peer(os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb"), _serve)
    peer.names_builtins = True
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    _say(data["verdict"], UP)
    _say(data["verdict"], _verdict(peer, data["tests"]))
    os._exit(0)


def _say(descriptor: int, line: str) -> None:
    os.write(descriptor, f"{line[:500]}\n".encode(errors="replace"))


def _verdict(peer: Peer, tests: str) -> str:
    try:
        if peer.read().get("value") != "started":
            return FAILED
    except Broken:
        return ABSENT
    try:
        if peer.read().get("value") != "loaded":
            return FAILED
        tree = ast.parse(tests, "tests")
        names = Names(peer, _modules_of(tree))
        exec(compile(tree, "tests", "exec", dont_inherit=True), names)
    except Unsendable as error:
        return f"{UNFIT} {' '.join(str(error).split())}"
    except BaseException:  # a failing test may raise anything
        return FAILED
    return FAILED if peer.broken else PASSED


class Names(dict[str, Any]):
    """Namespace of the tests; missing names are looked up in the answer."""

    def __init__(self, peer: Peer, modules: set[str]) -> None:
        super().__init__(__name__="__main__")
        self._peer, self._modules = peer, modules

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name) or name.startswith("__"):
            raise KeyError(name)
        if name in self._modules:
            return importlib.import_module(name)
        try:
            return self._peer.ask("name", name=name)
        except KeyError:
            raise NameError(f"name {name!r} is not defined") from None


def _modules_of(tree: ast.AST) -> set[str]:
    """Return the standard modules of which the tests use an attribute."""
    bases = (node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return {base.id for base in bases if isinstance(base, ast.Name)} & set(sys.stdlib_module_names)


def _serve(peer: Peer, request: dict[str, Json]) -> dict[str, Json]:
    """Call a function that the tests passed to the answer; every other request is refused."""
    if request.get("ask") != "call" or request.get("names") != []:
        peer.refuse("not to be asked for")
    function = peer.held(request.get("object"))
    return {"value": peer.encode(function(*peer.decode(request.get("args"))))}
