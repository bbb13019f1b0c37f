"""Teacher's job: a server that publishes its address and ends after a time without requests.

    serve_teacher(config.teacher, Path())     # run by scripts/slurm/teacher.sh

No process ends it: stages touch a file while they send requests, and the job watches that file.
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
from r2v.llm.engines.teacher import ADDRESS, LAST_REQUEST, folder_of, gpus_here, read_address, teacher_model
from r2v.log import logger
from r2v.signals import WATCH
from r2v.storage.files import write_json

_IDLE = 900.0
"""Seconds without a request after which the job ends."""
_EVERY = 5.0
"""Seconds between checks of the server."""
_MEMORY = 0.9
"""Share of each GPU's memory."""


def serve_teacher(teacher: TeacherConfig, root: Path, *, idle: float = _IDLE) -> int:
    """Serve until no request has come for `idle` seconds or a stop signal arrives; return 0. Raises EnvironmentFault if
    the engine does not start."""
    folder, gpus = folder_of(teacher, root), gpus_here()
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)  # it holds the server's key
    python, model = engine_python(engine_home(teacher.engine_venv)), teacher_model(teacher, gpus=gpus, memory=_MEMORY)
    server = OwnServer(python, model, host="0.0.0.0")  # stages connect from other nodes, with its key
    ending = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ending
        WATCH.heard()
        ending = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
        signal.signal(number, end)
    began = time.time()
    try:
        while not ending and time.time() - max(began, _last_request(folder)) < idle:
            asyncio.run(_keep(server, folder))
            _write_usage(folder, teacher, gpus, time.time() - began)
            time.sleep(_EVERY)
    finally:
        address = read_address(folder)
        if address is not None and address.key == server.key:  # else a successor has published its own
            (folder / ADDRESS).unlink(missing_ok=True)
        server.stop()
        _write_usage(folder, teacher, gpus, time.time() - began)
    logger.info("teacher's job ended: reason=%s", "stop signal" if ending else "no requests")
    return 0


async def _keep(server: OwnServer, folder: Path) -> None:
    """Start or restart the server if necessary, and publish its address if it changed."""
    await server.ready()
    if not await healthy(server.url):
        await server.recover(server.lives)
    url = f"http://{socket.gethostname()}:{server.url.rpartition(':')[2]}"
    published = read_address(folder)
    if published is None or (published.url, published.key) != (url, server.key):
        write_json(folder / ADDRESS, {"url": url, "key": server.key, "job": os.environ.get("SLURM_JOB_ID")})
        logger.info("teacher's job ready: url=%s", url)


def _last_request(folder: Path) -> float:
    """Return the Unix time of the last request; 0 before the first."""
    try:
        return (folder / LAST_REQUEST).stat().st_mtime
    except OSError:
        return 0.0


def _write_usage(folder: Path, teacher: TeacherConfig, gpus: int, seconds: float) -> None:
    """Write the job's GPU-hours so far into its own usage file."""
    job = os.environ.get("SLURM_JOB_ID", str(os.getpid()))
    hours = gpus * seconds / 3600
    write_json(folder / "usage" / f"{job}.json", {"model": teacher.model_name, "gpu_hours": round(hours, 4)})
