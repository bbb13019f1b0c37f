"""Worker: the child process of one world at a time, with a time limit on every call.

Its interpreter may be another one. It sees only the named environment variables, so none of R2V's keys. Its standard
output is discarded except for the last line, which a fault quotes.
"""

from __future__ import annotations

import json
import os
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import r2v
from r2v.errors import EnvironmentFault
from r2v.storage.removal import TEMPORARY, make_own_temporary, remove_own

_BOOT = Path(__file__).with_name("boot.py")
_PASSED = ("LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""Variables passed to every world besides those its benchmark names. None holds a secret."""
_LARGEST = 16 * 2**20
"""Largest answer in bytes; a larger one is a fault."""
_TAIL = 2000
_GRACE = 5.0
"""Seconds that the guard has to end all its processes."""


class WorkerFault(EnvironmentFault):
    """A world hung, died, raised or answered with too many bytes. Its process has been killed."""


@dataclass(frozen=True, kw_only=True)
class WorldProcess:
    """A worker's world and interpreter."""

    world: str
    """`module:Class` of a world, importable by `python` or next to R2V."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the class, as JSON values."""
    python: Path | None = None
    """Interpreter; None: the one that runs R2V."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables besides PATH, HOME, TMPDIR and `_PASSED`."""
    search: tuple[Path, ...] = ()
    """Folders added to the module search path."""


class Worker:
    """A started child process, for one thread at a time."""

    def __init__(self, spec: WorldProcess, *, seconds: float) -> None:
        """Start the process and create the world within `seconds`. Raises WorkerFault if that fails."""
        self.played = 0
        self._tail = b""
        self._scratch = make_own_temporary("r2v-world-")
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        owner_pipe, self._owner_pipe = os.pipe()
        child_ends = (requests, answers, owner_pipe)
        words = [str(spec.python or sys.executable), str(_BOOT), *map(str, child_ends), str(self._scratch)]
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=_environment(spec, self._scratch),
                cwd=self._scratch,
                pass_fds=child_ends,
                start_new_session=True,
            )
        except OSError as error:
            self._close_pipes()
            remove_own(self._scratch, TEMPORARY)
            raise WorkerFault(f"the world's process cannot be started: {words[0]}: {error.strerror}") from error
        finally:
            for descriptor in child_ends:
                os.close(descriptor)
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        for descriptor in (self._output, self._answers, self._requests):
            os.set_blocking(descriptor, False)
        search = [*map(str, spec.search), str(Path(r2v.__file__).parents[1])]  # R2V's own folder comes last
        order = {"world": spec.world, "options": dict(spec.options), "search": search}
        self.pid: int = self._ask(order, "start", seconds)["process"]
        """Process id of the world."""

    @property
    def alive(self) -> bool:
        """True if the process has not ended."""
        return self._process.poll() is None

    def call(self, method: str, arguments: Mapping[str, Any], *, seconds: float) -> Any:
        """Return the answer of a method of the world. Raises WorkerFault, after killing the process, if the world does
        not answer within `seconds`, ends, raises or answers with too many bytes."""
        return self._ask({"method": method, "arguments": dict(arguments)}, method, seconds)

    def kill(self) -> None:
        """End the process and its descendants, and wait for their end. May be called again."""
        if self._owner_pipe < 0:
            return
        self._close_pipes()  # closing the owner's pipe makes the guard end everything
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        if self._process.returncode < 0:  # a killed guard cannot end the processes that left the world's group
            _end_all_of(self._scratch)
        remove_own(self._scratch, TEMPORARY)

    def _close_pipes(self) -> None:
        for descriptor in (self._requests, self._answers, self._owner_pipe):
            os.close(descriptor)
        self._requests = self._answers = self._owner_pipe = -1

    def _ask(self, order: Mapping[str, Any], method: str, seconds: float) -> Any:
        until = time.monotonic() + seconds
        try:
            body = json.dumps(order, allow_nan=False).encode("utf-8", "surrogatepass")
            self._send(struct.pack(">I", len(body)) + body, until)
            size = struct.unpack(">I", self._read(4, until))[0]
            if size > _LARGEST:
                self._fail(f"{method}: an answer of {size} bytes, where at most {_LARGEST} are taken")
            reply = json.loads(self._read(size, until).decode("utf-8", "surrogatepass"))
        except TimeoutError:
            self._fail(f"{method}: no answer within {seconds:g} s")
        except (EOFError, BrokenPipeError):
            self._fail(f"{method}: the world's process ended{self._how()}")
        except ValueError:
            self._fail(f"{method}: the world's process answered with something else than an answer")
        except BaseException:  # after an interruption, the next call would read this call's answer
            self.kill()
            raise
        if "raised" in reply:
            self._fail(f"{method}: {reply['raised']}")
        return reply["answer"]

    def _fail(self, problem: str) -> None:
        """Kill the process and raise WorkerFault with the last line of its output."""
        last = self._tail.decode(errors="replace").strip().splitlines()
        self.kill()
        raise WorkerFault(problem + (f"; it last said: {' '.join(last[-1].split())[:200]}" if last else ""))

    def _how(self) -> str:
        """Return the signal or exit code in words, empty if unknown."""
        try:
            code = self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            return ""
        finally:
            self._drain()
        return f" (signal {256 - code})" if code >= 192 else f" (exit code {code})" if code > 0 else ""

    def _send(self, body: bytes, until: float) -> None:
        view = memoryview(body)
        while view:
            self._wait([self._output], [self._requests], until)
            with suppress(BlockingIOError):
                view = view[os.write(self._requests, view) :]

    def _read(self, size: int, until: float) -> bytes:
        parts = []
        while size:
            self._wait([self._output, self._answers], [], until)
            with suppress(BlockingIOError):
                if not (part := os.read(self._answers, min(size, 1 << 20))):
                    raise EOFError
                parts.append(part)
                size -= len(part)
        return b"".join(parts)

    def _wait(self, reading: list[int], writing: list[int], until: float) -> None:
        """Wait until a pipe is ready, reading the world's output meanwhile. Raises TimeoutError."""
        while (left := until - time.monotonic()) > 0:
            poll = select.poll()
            for descriptor in reading:
                if descriptor >= 0:
                    poll.register(descriptor, select.POLLIN)
            for descriptor in writing:
                poll.register(descriptor, select.POLLOUT)
            ready = {descriptor for descriptor, _ in poll.poll(left * 1000)}
            if self._output in ready:
                self._drain()
            if ready - {self._output}:
                return
        raise TimeoutError

    def _drain(self) -> None:
        """Read the world's printed output and keep its end."""
        with suppress(BlockingIOError):
            if part := os.read(self._output, 1 << 16):
                self._tail = (self._tail + part)[-_TAIL:]
            else:
                self._output = -1


def _end_all_of(scratch: Path) -> None:
    """Kill processes with this folder as their TMPDIR until none is left."""
    mark = b"\0TMPDIR=" + os.fsencode(scratch) + b"\0"
    killed = True
    while killed:
        killed = False
        for environment in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in b"\0" + environment.read_bytes() and int(environment.parent.name) != os.getpid():
                    os.kill(int(environment.parent.name), signal.SIGKILL)
                    killed = True


def _environment(spec: WorldProcess, scratch: Path) -> dict[str, str]:
    """Return the environment variables of the process: _PASSED, its own folders, and the benchmark's."""
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    own = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(scratch), "TMPDIR": str(scratch)}
    return {**passed, **own, **spec.environment}
