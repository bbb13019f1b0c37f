"""Served teacher: an open-weights LLM behind R2V's own server, called as an OpenAI-compatible endpoint.

    provider = ServedTeacher(rate, locator)     # locator: `StageServer` or `JobServer`

The server's address is not configured but looked up again whenever a connection fails, since a restarted server has
another port or node and another key.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from r2v.config import TeacherConfig
from r2v.config.engines import JOB, VLLM
from r2v.errors import EnvironmentFault, InputError, UsageError
from r2v.llm.engines.release import EngineModel, engine_home, engine_python
from r2v.llm.engines.servers import OwnServer, healthy
from r2v.llm.providers.openai import OpenAI
from r2v.llm.providers.prices import Rate
from r2v.llm.providers.provider import CallResult, ProviderFault
from r2v.llm.providers.provider_requests import ProviderRequest
from r2v.llm.types import Request
from r2v.log import logger
from r2v.storage.artifact_manifest import json_sha256
from r2v.storage.model_identity import is_here, model_folder
from r2v.storage.paths import ENGINES
from r2v.storage.record import wait

ADDRESS, LAST_REQUEST = "address.json", "asked"
"""Files in the folder of a job's server: its address, and a file touched while stages send requests."""
_EVERY = 2.0
"""Seconds between looks for the server's address."""
_TOUCH_EVERY = 10.0
"""Least seconds between two touches; the job ends after many times as long without one."""
_WAIT_NAME = "teacher's server"
_MEMORY = 0.5
"""Share of each GPU's memory; the rest is for the policy that runs there too."""
_STAGE_SERVERS: dict[EngineModel, OwnServer] = {}


@dataclass(frozen=True, kw_only=True)
class Address:
    """Current address of a server."""

    url: str
    """Root URL, without a trailing slash."""
    key: str


class ServerLocator(Protocol):
    """Finds the address of a server that may move."""

    async def find(self) -> Address:
        """Return the address once the server answers. Raises EnvironmentFault if it never does."""
        ...

    async def connection_failed(self) -> None:
        """React to a failed connection."""
        ...

    def mark_used(self) -> None:
        """Record that a request is sent."""
        ...


class ServedTeacher:
    """A `Provider` that looks up its server's address."""

    name = "openai"

    def __init__(self, rate: Rate, locator: ServerLocator) -> None:
        self._rate, self._locator = rate, locator
        self._bodies = OpenAI(rate, keyless=True)
        self._openai: OpenAI | None = None
        self._lock = asyncio.Lock()

    def request_body(self, request: Request) -> Mapping[str, Any]:
        """Return the body of an OpenAI chat completion."""
        return self._bodies.request_body(request)

    async def call(self, request: ProviderRequest) -> CallResult:
        """Send the request once, without retries."""
        client = await self._client()
        self._locator.mark_used()
        try:
            return await client.call(request)
        except ProviderFault as fault:
            if fault.status is None:  # no HTTP answer: the server may have moved
                await self._discard(client)
            raise

    async def ping(self) -> None:
        """Wait until the server answers."""
        await self._client()

    async def close(self) -> None:
        """Close the connections; the server keeps running."""
        if self._openai is not None:
            await self._openai.close()
        self._openai, self._lock = None, asyncio.Lock()  # the next run has its own event loop

    async def _client(self) -> OpenAI:
        async with self._lock:
            if self._openai is None:
                address = await self._locator.find()
                self._openai = OpenAI(self._rate, base_url=f"{address.url}/v1", key=address.key)
            return self._openai

    async def _discard(self, client: OpenAI) -> None:
        async with self._lock:
            if self._openai is client:  # of several calls that failed together, the first replaces it
                self._openai = None
                await client.close()
                await self._locator.connection_failed()


class StageServer:
    """Locator of a server that this process starts and restarts."""

    def __init__(self, server: OwnServer) -> None:
        self._server = server

    async def find(self) -> Address:
        await self._server.ready()
        self._server.answered()
        return Address(url=self._server.url, key=self._server.key)

    async def connection_failed(self) -> None:
        await self._server.recover(self._server.lives)

    def mark_used(self) -> None:
        pass


class JobServer:
    """Locator of a Slurm job's server, which writes its address into a folder of the checkout. The runner of the
    stage's job submits and resubmits that job (`r2v.slurm.job.teacher_job`)."""

    def __init__(self, folder: Path, patience: float) -> None:
        self._folder, self._patience = folder, patience
        self._last_touch = 0.0

    async def find(self) -> Address:
        until = time.time() + self._patience
        waiting = False
        while True:
            self.mark_used()
            address = read_address(self._folder)
            if address is not None and await healthy(address.url):
                if waiting:
                    wait(_WAIT_NAME, None)
                return address
            if not os.environ.get("SLURM_JOB_ID"):
                raise UsageError(
                    "teacher.engine=job: no teacher's job is running, and only stages run by Slurm submit one; "
                    "use run_all or sbatch, or set teacher.engine=vllm"
                )
            if time.time() > until:
                raise EnvironmentFault(
                    f"teacher.engine=job: no server answered for {self._patience:.0f} s; see the queue (squeue --me) "
                    "and logs/teacher_*.out, then run the same command again"
                )
            if not waiting:
                waiting = True
                logger.info("  teacher waits for its Slurm job")
            wait(_WAIT_NAME, "its Slurm job does not answer yet", until)
            await asyncio.sleep(_EVERY)

    async def connection_failed(self) -> None:
        self.mark_used()

    def mark_used(self) -> None:
        """Touch the file that keeps the job running, at most every `_TOUCH_EVERY` seconds."""
        if time.time() - self._last_touch < _TOUCH_EVERY:
            return
        self._last_touch = time.time()
        with suppress(OSError):  # a full disk must not stop the request
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self._folder / LAST_REQUEST).touch()


def read_address(folder: Path) -> Address | None:
    """Return the address that the job's server wrote; None if missing or unreadable."""
    try:
        values = json.loads((folder / ADDRESS).read_text())
        return Address(url=str(values["url"]), key=str(values["key"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def folder_of(teacher: TeacherConfig, root: Path) -> Path:
    """Return the folder of the job that serves this teacher, shared by all chains of the checkout."""
    return root / ENGINES / json_sha256([teacher.model_name, teacher.context])[:16]


def teacher_model(teacher: TeacherConfig, *, gpus: int, memory: float) -> EngineModel:
    """Return the launch settings of a teacher's server on `gpus` GPUs (0: CPU), of each of which it takes the share
    `memory`. Raises as `model_folder`."""
    return EngineModel(
        path=str(model_folder(teacher.model_name).resolve()),
        dtype="auto",
        max_model_len=teacher.context or 0,
        lora_rank=0,
        gpu_memory=memory if gpus else None,
        chat=teacher.model_name,
        gpus=max(1, gpus),
    )


def served_teacher(teacher: TeacherConfig, rate: Rate, root: Path) -> ServedTeacher:
    """Return the provider of a teacher with its own engine. Raises EnvironmentFault if no engine is installed,
    InputError if the model is not on this machine."""
    if not is_here(teacher.model_name):
        raise InputError(
            f"teacher.model_name={teacher.model_name}: not on this machine, and jobs do not download models; run `r2v "
            "prefetch` with this configuration, or name a folder"
        )
    if teacher.engine == JOB:
        return ServedTeacher(rate, JobServer(folder_of(teacher, root), teacher.outage_seconds))
    assert teacher.engine == VLLM
    python = engine_python(engine_home(teacher.engine_venv))
    model = teacher_model(teacher, gpus=gpus_here(), memory=_MEMORY)
    if model not in _STAGE_SERVERS:
        import atexit

        _STAGE_SERVERS[model] = OwnServer(python, model)
        atexit.register(_STAGE_SERVERS[model].stop)
    return ServedTeacher(rate, StageServer(_STAGE_SERVERS[model]))


def gpus_here() -> int:
    """Return the number of GPUs granted to this process, counted without loading a library."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return len([name for name in named.split(",") if name.strip()])
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
