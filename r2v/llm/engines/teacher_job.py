"""The teacher's job: a server that says where it is, and ends when nobody has asked for a while.

    serve_teacher(config.teacher, Path())     # what scripts/slurm/teacher.sh runs

No process waits for it to end and none ends it: stages touch a file while they ask, and it looks at that.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from pathlib import Path
from types import FrameType

from r2v.config import TeacherConfig
from r2v.llm.engines.release import engine_home, engine_python
from r2v.llm.engines.servers import OwnServer, healthy
from r2v.llm.engines.teacher import ADDRESS, ASKED, folder_of, gpus_here, read_address, teacher_model
from r2v.log import logger
from r2v.signals import WATCH
from r2v.storage.files import write_json

_IDLE = 900.0
"""Seconds without a question after which it ends."""
_EVERY = 5.0
_MEMORY = 0.9
"""Of each GPU of the job."""


def serve_teacher(teacher: TeacherConfig, root: Path, *, idle: float = _IDLE) -> int:
    """Serve until nobody asks, or a signal asks to stop; returns 0. Raises EnvironmentFault where the engine cannot be
    had."""
    folder, gpus = folder_of(teacher, root), gpus_here()
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)  # the server's key lies in it
    python, model = engine_python(engine_home(teacher.engine_venv)), teacher_model(teacher, gpus=gpus, memory=_MEMORY)
    server = OwnServer(python, model, host="0.0.0.0")  # stages ask from other nodes, with its key
    ending = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ending
        WATCH.heard()
        ending = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
        signal.signal(number, end)
    began = time.time()
    try:
        while not ending and time.time() - max(began, _asked(folder)) < idle:
            asyncio.run(_keep(server, folder))
            _write_usage(folder, teacher, gpus, time.time() - began)
            time.sleep(_EVERY)
    finally:
        mine = read_address(folder)
        if mine is not None and mine.key == server.key:
            (folder / ADDRESS).unlink(missing_ok=True)
        server.stop()
        _write_usage(folder, teacher, gpus, time.time() - began)
    logger.info("teacher's job: ends, %s", "asked to" if ending else "nobody has asked for a while")
    return 0


async def _keep(server: OwnServer, folder: Path) -> None:
    """Have it run, and its address written."""
    await server.ready()
    if not await healthy(server.url):
        await server.recover(server.lives)
    url = f"http://{socket.gethostname()}:{server.url.rpartition(':')[2]}"
    found = read_address(folder)
    if found is None or (found.url, found.key) != (url, server.key):
        write_json(folder / ADDRESS, {"url": url, "key": server.key, "job": os.environ.get("SLURM_JOB_ID")})
        logger.info("teacher's job: serves at %s", url)


def _asked(folder: Path) -> float:
    try:
        return (folder / ASKED).stat().st_mtime
    except OSError:
        return 0.0


def _write_usage(folder: Path, teacher: TeacherConfig, gpus: int, seconds: float) -> None:
    """Write what the job has used so far, in a file of its own."""
    job = os.environ.get("SLURM_JOB_ID", str(os.getpid()))
    hours = gpus * seconds / 3600
    write_json(folder / "usage" / f"{job}.json", {"model": teacher.model_name, "gpu_hours": round(hours, 4)})
