"""A served teacher: an open-weights LLM behind a server of the chain's own, asked like any OpenAI-compatible endpoint.

    provider = ServedTeacher(rate, place)     # place: a server beside the stage, or that of a Slurm job

Where its server is stands in no configuration: it is asked for again whenever a connection fails, for a server that was
killed comes back on another port or node, under another key.
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

ADDRESS, ASKED = "address.json", "asked"
"""In the folder of a job's server: where it is, and when it was last asked."""
_EVERY = 2.0
_TOUCH_EVERY = 10.0
"""Seconds; the job ends after many times as long without a touch."""
_TOLD_AS = "teacher's server"
_MEMORY = 0.5
"""Of each GPU, beside the policy that plays on it."""
_BESIDE: dict[EngineModel, OwnServer] = {}


@dataclass(frozen=True, kw_only=True)
class Address:
    """A server as it can be asked now."""

    url: str
    """Its root, without a last slash."""
    key: str


class Place(Protocol):
    """A source of a server's address."""

    async def find(self) -> Address:
        """Its address, once it answers. Raises EnvironmentFault where it cannot be had."""
        ...

    async def lost(self) -> None:
        """A connection to it failed."""
        ...

    def asked(self) -> None:
        """It is being asked."""
        ...


class ServedTeacher:
    """A `Provider` whose server is looked for."""

    name = "openai"

    def __init__(self, rate: Rate, place: Place) -> None:
        self._rate, self._place = rate, place
        self._bodies = OpenAI(rate, keyless=True)
        self._found: tuple[Address, OpenAI] | None = None
        self._turn = asyncio.Lock()

    def request_body(self, request: Request) -> Mapping[str, Any]:
        """As OpenAI's chat completions have it."""
        return self._bodies.request_body(request)

    async def call(self, request: ProviderRequest) -> CallResult:
        """Send it now, once."""
        client = await self._client()
        self._place.asked()
        try:
            return await client.call(request)
        except ProviderFault as fault:
            if fault.status is None:
                await self._forget(client)
            raise

    async def ping(self) -> None:
        """Wait until it is there."""
        await self._client()

    async def close(self) -> None:
        """Close the connections; the server stays."""
        if self._found is not None:
            await self._found[1].close()
        self._found, self._turn = None, asyncio.Lock()  # the next run has an event loop of its own

    async def _client(self) -> OpenAI:
        async with self._turn:
            if self._found is None:
                address = await self._place.find()
                self._found = address, OpenAI(self._rate, base_url=f"{address.url}/v1", key=address.key)
            return self._found[1]

    async def _forget(self, client: OpenAI) -> None:
        async with self._turn:
            if self._found is not None and self._found[1] is client:
                self._found = None
                await client.close()
                await self._place.lost()


class BesideStage:
    """A server that this process starts, and starts again."""

    def __init__(self, server: OwnServer) -> None:
        self._server = server

    async def find(self) -> Address:
        await self._server.ready()
        self._server.answered()
        return Address(url=self._server.url, key=self._server.key)

    async def lost(self) -> None:
        await self._server.recover(self._server.lives)

    def asked(self) -> None:
        pass


class OfJob:
    """The server of a Slurm job, which writes its address into a folder of the checkout. The runner of the stage's own
    job submits it, and submits it again (`r2v.slurm.job.teacher_job`)."""

    def __init__(self, folder: Path, patience: float) -> None:
        self._folder, self._patience = folder, patience
        self._told = 0.0

    async def find(self) -> Address:
        until = time.time() + self._patience
        told = False
        while True:
            self.asked()
            found = read_address(self._folder)
            if found is not None and await healthy(found.url):
                if told:
                    wait(_TOLD_AS, None)
                return found
            if not os.environ.get("SLURM_JOB_ID"):
                raise UsageError(
                    "teacher.engine=job: no server of a Slurm job is there, and this is no Slurm job, which would have "
                    "one submitted; use run_all or sbatch, or teacher.engine=vllm"
                )
            if time.time() > until:
                raise EnvironmentFault(
                    f"teacher.engine=job: no server answered for {self._patience:.0f} s; see the queue (squeue --me) "
                    "and logs/teacher_*.out, then run the same command again"
                )
            if not told:
                told = True
                logger.info("  teacher: waiting for its Slurm job")
            wait(_TOLD_AS, "its Slurm job is not there yet", until)
            await asyncio.sleep(_EVERY)

    async def lost(self) -> None:
        self.asked()

    def asked(self) -> None:
        """Touch the file by which the job knows that it is needed, at most every few seconds; a disk that refuses stops
        no question."""
        if time.time() - self._told < _TOUCH_EVERY:
            return
        self._told = time.time()
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self._folder / ASKED).touch()


def read_address(folder: Path) -> Address | None:
    """The address that a job's server wrote last; None if there is none."""
    try:
        values = json.loads((folder / ADDRESS).read_text())
        return Address(url=str(values["url"]), key=str(values["key"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def folder_of(teacher: TeacherConfig, root: Path) -> Path:
    """The folder of the job that serves this teacher, for all chains of the checkout."""
    return root / ENGINES / json_sha256([teacher.model_name, teacher.context])[:16]


def teacher_model(teacher: TeacherConfig, *, gpus: int, memory: float) -> EngineModel:
    """Launch settings of a teacher's server on so many GPUs (0: on the CPU). Raises as `model_folder` does."""
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
    """The provider of a teacher with an engine of its own. Raises EnvironmentFault where no engine is installed,
    InputError where the model is not here."""
    if not is_here(teacher.model_name):
        raise InputError(
            f"teacher.model_name={teacher.model_name}: not on this machine, and no job waits for a download; `r2v "
            "prefetch` with this configuration gets it, or name a folder"
        )
    if teacher.engine == JOB:
        return ServedTeacher(rate, OfJob(folder_of(teacher, root), teacher.outage_seconds))
    assert teacher.engine == VLLM
    python = engine_python(engine_home(teacher.engine_venv))
    model = teacher_model(teacher, gpus=gpus_here(), memory=_MEMORY)
    if model not in _BESIDE:
        import atexit

        _BESIDE[model] = OwnServer(python, model)
        atexit.register(_BESIDE[model].stop)
    return ServedTeacher(rate, BesideStage(_BESIDE[model]))


def gpus_here() -> int:
    """GPUs that this process was granted; no library is loaded to count them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return len([name for name in named.split(",") if name.strip()])
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
