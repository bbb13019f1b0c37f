"""Servers: one engine process of ours, started, watched and started again; or somebody else's, which is waited for.

    server = OwnServer(python=..., model=...)
    await server.ready()                  # started where it is not running; returns once /health says 200
    life = server.lives
    ...                                   # a request fails
    await server.recover(life)            # alive again, whoever asked first; raises EnvironmentFault in the end
    server.stop()

A server listens on a free port of the loopback under a random key, which stands in its environment alone. Its launcher
(`r2v.llm.engines.launcher`) ends it when this process is gone, however that went.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from r2v.errors import EnvironmentFault
from r2v.llm.engines.release import EngineModel, command_line, environment, install_plugins
from r2v.log import logger
from r2v.storage.removal import TEMPORARY, make_own_temporary, remove_own

_READY_SECONDS = 1800.0
"""A large model is read from a slow disk, and its kernels are compiled."""
_EXTERNAL_SECONDS = 60.0
_DYING_SECONDS = 10.0
"""After a failed request, so long is a process watched that is about to end."""
_DEATHS = 3
"""Restarts without an answer between them, after which the engine is given up."""
_PORTS = 3
_TAKEN = "already in use"
"""A free port may be somebody else's before the server has it: another is tried."""
_EVERY = 0.1
_ERROR, _NO_CAUSE = re.compile("Error|ERROR|error:|Exception"), re.compile("WARNING|INFO|See stack trace")


class EngineServer(Protocol):
    """One server, own or somebody else's. `url` has no last slash, `lives` counts its starts."""

    url: str
    key: str
    lives: int

    async def ready(self) -> None:
        """Returns once it answers. Raises EnvironmentFault where it can't be had."""
        ...

    async def recover(self, life: int) -> None:
        """Returns once it answers again after a request failed in that life. Raises EnvironmentFault in the end."""
        ...

    def answered(self) -> None:
        """It gave an answer: what failed before is no reason to give it up."""
        ...


async def healthy(url: str, key: str | None = None) -> bool:
    """True if a server says that it can answer and, asked with a key, takes this key."""
    asked = [urllib.request.Request(f"{url}/health")]
    if key is not None:
        asked.append(urllib.request.Request(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"}))

    def ask() -> bool:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with suppress(OSError, urllib.error.URLError, ValueError):
            for request in asked:
                with opener.open(request, timeout=10) as response:
                    if response.status != 200:
                        return False
            return True
        return False

    return await asyncio.to_thread(ask)


class _OneAtATime:
    """A lock for whichever event loop is running: a server outlives the loops of a stage's runs."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()

    def __call__(self) -> asyncio.Lock:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._lock = loop, asyncio.Lock()
        return self._lock


class OwnServer:
    """A server that this process starts, on one GPU (`gpu`, as CUDA_VISIBLE_DEVICES names it) or on the CPU."""

    def __init__(self, python: Path, model: EngineModel, gpu: str | None = None, *, host: str = "127.0.0.1") -> None:
        self.python, self.model, self.gpu, self.host = python, model, gpu, host
        self.url, self.key, self.lives = "", secrets.token_urlsafe(32), 0
        self._process: subprocess.Popen[bytes] | None = None
        self._scratch: Path | None = None
        self._deaths = 0
        self._turn = _OneAtATime()

    @property
    def pid(self) -> int | None:
        """The launcher's process id."""
        return None if self._process is None else self._process.pid

    async def ready(self) -> None:
        async with self._turn():
            if not self._alive():
                await self._start()

    async def recover(self, life: int) -> None:
        async with self._turn():
            if self.lives != life:
                return
            until = time.monotonic() + _DYING_SECONDS
            while self._alive() and time.monotonic() < until:
                if await healthy(self.url, self.key):
                    await asyncio.sleep(5 * _EVERY)  # one that is dying still says 200 for a moment
                    if self._alive() and await healthy(self.url, self.key):
                        return
                await asyncio.sleep(_EVERY)
            self._deaths += 1
            last = self._last_line()
            if self._deaths > _DEATHS:
                raise EnvironmentFault(f"policy.engine: the engine died {self._deaths} times without an answer: {last}")
            logger.warning("  engine: the server died (%s); it is started again", last)
            await self._start()

    def answered(self) -> None:
        self._deaths = 0

    def stop(self) -> None:
        """End the server and everything it started."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()  # Linux then kills the server too
                self._process.wait()
            self._process = None
        if self._scratch is not None:
            _kill_those_in(self._scratch)
            remove_own(self._scratch, TEMPORARY)
            self._scratch = None

    def _alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def _start(self) -> None:
        began = time.monotonic()
        for attempt in range(_PORTS):
            self._launch(_free_port())
            if await self._until_healthy(began + _READY_SECONDS):
                logger.info("  engine: ready after %.0f s", time.monotonic() - began)
                return
            why = "ended" if not self._alive() else f"was not ready within {_READY_SECONDS:.0f} s"
            last = self._last_line()
            self.stop()
            if attempt == _PORTS - 1 or _TAKEN not in last:
                raise EnvironmentFault(f"policy.engine=vllm: the server {why}: {last}; `r2v engine show` tests it")

    def _launch(self, port: int) -> None:
        self.stop()
        self._scratch = make_own_temporary("r2v-engine-")
        install_plugins(self._scratch)
        words = command_line(self.model, host=self.host, port=port)
        launcher = Path(__file__).with_name("launcher.py")
        with (self._scratch / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(self.python), str(launcher), str(os.getpid()), str(self._scratch), *words],
                env=environment(self.key, self._scratch, self.gpu),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._scratch,
                start_new_session=True,  # what kills our process group must leave it, to end the server's workers
            )
        self.url, self.lives = f"http://127.0.0.1:{port}", self.lives + 1

    async def _until_healthy(self, until: float) -> bool:
        """True if it became ready before it ended and before its time was over. Another server that was given the same
        port first answers too, but not to this key."""
        while not await healthy(self.url, self.key):
            if not self._alive() or time.monotonic() > until:
                return False
            await asyncio.sleep(_EVERY)
        return True

    def _last_line(self) -> str:
        """What the log says last of an error, on one line, or how the server ended."""
        text = "" if self._scratch is None else (self._scratch / "log").read_text(errors="replace")
        errors = [line for line in text.splitlines() if _ERROR.search(line) and not _NO_CAUSE.search(line)]
        code = None if self._process is None else self._process.poll()
        return " ".join(errors[-1].split())[-300:] if errors else f"no error in its log, exit code {code}"


class ExternalServer:
    """A server that somebody else started and looks after."""

    def __init__(self, url: str, key: str) -> None:
        self.url, self.key, self.lives = url, key, 1
        self._turn = _OneAtATime()

    async def ready(self) -> None:
        await self._wait(0.0)

    async def recover(self, life: int) -> None:
        async with self._turn():
            await self._wait(_EXTERNAL_SECONDS)

    def answered(self) -> None:
        pass

    async def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not await healthy(self.url):
            if time.monotonic() >= until:
                raise EnvironmentFault(f"policy.engine={self.url}: no server answers there; start it, or set vllm")
            await asyncio.sleep(5 * _EVERY)


def _kill_those_in(scratch: Path) -> None:
    """End workers whose launcher, leader and server were all killed at once: on Linux, whoever works in that folder,
    which is nobody else's."""
    for place in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):  # it has ended meanwhile, or is somebody else's
            if place.readlink() == scratch.resolve():
                os.kill(int(place.parent.name), signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
