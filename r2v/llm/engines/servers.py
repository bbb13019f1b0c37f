"""Engine servers: R2V's own processes, which it restarts, and external ones, which it waits for.

    server = OwnServer(python=..., model=...)
    server.begin()                        # starts it, to load while the stage prepares
    await server.ready()                  # starts it if necessary; returns once it answers
    life = server.lives
    ...                                   # a request fails
    await server.recover(life)            # restarts it once for all callers; raises EnvironmentFault after three deaths
    server.stop()

It answers on a Unix socket in its private folder (`r2v.llm.engines.direct`); one of chat completions listens on a free
loopback port under a random key, which is only in its environment. Its launcher (`r2v.llm.engines.launcher`) ends it
when this process is gone, even by kill -9.
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
from r2v.llm.engines.release import SOCKET, EngineModel, command_line, environment, install_plugins
from r2v.log import logger
from r2v.storage.removal import TEMPORARY, make_own_temporary, remove_own

_READY_SECONDS = 1800.0
"""Startup timeout: a large model is read from a slow disk, and its kernels are compiled."""
_EXTERNAL_SECONDS = 60.0
"""Wait for an external server after a failed request: its owner may be restarting it."""
_DYING_SECONDS = 10.0
"""Wait after a failed request for the process to end or turn healthy, before it is restarted."""
_DEATHS = 3
"""Most restarts in a row without an answer in between."""
_PORTS = 3
_PORT_IN_USE = "already in use"
"""Ports tried, and vLLM's error: another process may bind the free port before the server does."""
_EVERY = 0.1
"""Seconds between health checks."""
_ERROR, _NO_CAUSE = re.compile("Error|ERROR|error:|Exception"), re.compile("WARNING|INFO|See stack trace")


class EngineServer(Protocol):
    """An engine server, reached over HTTP at `url`, without a trailing slash, or over a Unix `socket` instead. `lives`
    counts its starts."""

    url: str
    socket: Path | None
    key: str
    lives: int

    async def ready(self) -> None:
        """Return once the server answers. Raises EnvironmentFault if it does not start."""
        ...

    async def recover(self, life: int) -> None:
        """Return once the server answers again after a request failed in that life. Raises EnvironmentFault if it never
        does."""
        ...

    def answered(self) -> None:
        """Record that the server answered: earlier deaths no longer count."""
        ...


async def healthy(url: str, key: str | None = None) -> bool:
    """True if the server's /health answers 200 and, given a key, it accepts the key."""
    probes = [urllib.request.Request(f"{url}/health")]
    if key is not None:
        probes.append(urllib.request.Request(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"}))

    def ask() -> bool:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with suppress(OSError, urllib.error.URLError, ValueError):  # not reachable yet, or no HTTP
            for request in probes:
                with opener.open(request, timeout=10) as response:
                    if response.status != 200:
                        return False
            return True
        return False

    return await asyncio.to_thread(ask)


class _LoopLock:
    """An asyncio lock per event loop: a server outlives the loops of a stage's runs, and runs follow one another."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()

    def __call__(self) -> asyncio.Lock:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._lock = loop, asyncio.Lock()
        return self._lock


class OwnServer:
    """A server started by this process, on one GPU (`gpu`, a name of CUDA_VISIBLE_DEVICES) or on the CPU."""

    def __init__(self, python: Path, model: EngineModel, gpu: str | None = None, *, host: str = "127.0.0.1") -> None:
        self.python, self.model, self.gpu, self.host = python, model, gpu, host
        self.url, self.key, self.lives = "vllm", secrets.token_urlsafe(32), 0
        self.socket: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._scratch: Path | None = None
        self._deaths = 0
        self._is_ready = False
        self._lock = _LoopLock()

    @property
    def pid(self) -> int | None:
        """Process id of the launcher; None while no server runs."""
        return None if self._process is None else self._process.pid

    def begin(self) -> None:
        """Start the server without waiting for it; `ready` waits."""
        if self._process is None:
            self._launch(_free_port())

    async def ready(self) -> None:
        async with self._lock():
            if not (self._is_ready and self._alive()):
                await self._start(begun=self._process is not None and not self._is_ready)

    async def recover(self, life: int) -> None:
        async with self._lock():
            if self.lives != life:
                return
            until = time.monotonic() + _DYING_SECONDS
            while self._alive() and time.monotonic() < until:
                if await self.healthy():
                    await asyncio.sleep(5 * _EVERY)  # a dying server still answers 200 for a moment
                    if self._alive() and await self.healthy():
                        return
                await asyncio.sleep(_EVERY)
            self._deaths += 1
            last = self._last_line()
            if self._deaths > _DEATHS:
                raise EnvironmentFault(f"policy.engine: the engine died {self._deaths} times without an answer: {last}")
            logger.warning("  engine server died, restarting: error=%s", last)
            await self._start()

    def answered(self) -> None:
        self._deaths = 0

    def stop(self) -> None:
        """End the server and everything it started."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:  # a hung launcher; Linux kills its server with it
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._scratch is not None:
            _kill_workers_in(self._scratch)
            remove_own(self._scratch, TEMPORARY)
            self._scratch = None

    def _alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def _start(self, *, begun: bool = False) -> None:
        """Launch the server, unless it has `begun`, and wait for it."""
        began = time.monotonic()
        for attempt in range(_PORTS):
            if attempt or not begun:
                self._launch(_free_port())
            if await self._until_healthy(began + _READY_SECONDS):
                self._is_ready = True
                logger.info("  engine ready: waited_seconds=%.0f", time.monotonic() - began)
                return
            why = "ended" if not self._alive() else f"was not ready within {_READY_SECONDS:.0f} s"
            last = self._last_line()
            self.stop()
            # vLLM gives up if the stage, which prepares meanwhile, frees GPU memory that the engine has measured
            if attempt == _PORTS - 1 or not (_PORT_IN_USE in last or (begun and not attempt)):
                raise EnvironmentFault(f"policy.engine=vllm: the server {why}: {last}; `r2v engine show` tests it")
            logger.warning("  engine did not start, trying again: error=%s", last)

    def _launch(self, port: int) -> None:
        self.stop()
        self._scratch = make_own_temporary("r2v-engine-")
        install_plugins(self._scratch)
        over_http = self.model.chat is not None
        words = command_line(self.model, host=self.host if over_http else None, port=port)
        launcher = Path(__file__).with_name("launcher.py")
        with (self._scratch / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(self.python), str(launcher), str(os.getpid()), str(self._scratch), *words],
                env=environment(self.key, self._scratch, self.gpu),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._scratch,
                start_new_session=True,  # a kill of our process group spares the launcher, which ends the workers
            )
        self.lives, self._is_ready = self.lives + 1, False
        if over_http:
            self.url = f"http://127.0.0.1:{port}"
        else:  # the launcher's working directory: a socket's path has at most 107 bytes, the folder's may have more
            self.socket = Path(f"/proc/{self._process.pid}/cwd/{SOCKET}")

    async def healthy(self) -> bool:
        """True if the server is ready. The key tells it from another server that bound the port first."""
        return await healthy(self.url, self.key) if self.socket is None else self.socket.exists()

    async def _until_healthy(self, until: float) -> bool:
        """True if the server became ready, False if it ended or `until` (monotonic seconds) passed."""
        while not await self.healthy():
            if not self._alive() or time.monotonic() > until:
                return False
            await asyncio.sleep(_EVERY)
        return True

    def _last_line(self) -> str:
        """Return the last error of the server's log on one line, or its exit code."""
        text = "" if self._scratch is None else (self._scratch / "log").read_text(errors="replace")
        errors = [line for line in text.splitlines() if _ERROR.search(line) and not _NO_CAUSE.search(line)]
        code = None if self._process is None else self._process.poll()
        return " ".join(errors[-1].split())[-300:] if errors else f"no error in its log, exit code {code}"


class ExternalServer:
    """A server that the user runs: R2V waits for it and never restarts it."""

    def __init__(self, url: str, key: str) -> None:
        self.url, self.key, self.lives = url, key, 1
        self.socket: Path | None = None
        self._lock = _LoopLock()

    async def ready(self) -> None:
        await self._wait(0.0)

    async def recover(self, life: int) -> None:
        async with self._lock():
            await self._wait(_EXTERNAL_SECONDS)

    def answered(self) -> None:
        pass

    async def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not await healthy(self.url):
            if time.monotonic() >= until:
                raise EnvironmentFault(f"policy.engine={self.url}: no server answers there; start it, or set vllm")
            await asyncio.sleep(5 * _EVERY)


def _kill_workers_in(scratch: Path) -> None:
    """Kill workers left after their launcher, leader and server were killed together: on Linux, every process whose
    working directory is the private scratch folder."""
    for cwd in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):  # ended meanwhile, or another user's process
            if cwd.readlink() == scratch.resolve():
                os.kill(int(cwd.parent.name), signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
