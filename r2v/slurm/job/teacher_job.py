"""The teacher's job, seen from a stage's job: submitted where it is not in the queue, and again when it was lost.

    job = teacher_job(words, root)       # None where the command asks no teacher that a job serves
    job.look_beside()                    # at the start of a stage's job, and every minute beside it

Any number of stages, of any chain of the checkout, share one server of a model; whoever finds none submits it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from r2v.config import Config, to_yaml
from r2v.config.engines import JOB
from r2v.errors import EnvironmentFault, LeaseConflict, R2VError
from r2v.llm.engines.servers import healthy
from r2v.llm.engines.teacher import folder_of, read_address
from r2v.log import logger
from r2v.pipeline.jobs import JOBS
from r2v.pipeline.rows import Job
from r2v.slurm.client import client
from r2v.slurm.job.command_line import config_of
from r2v.slurm.site import headers
from r2v.slurm.site.script_text import ENVIRONMENT
from r2v.storage.files import write_text
from r2v.storage.lease import lease
from r2v.storage.paths import LOGS, SCRIPTS

TEACHER_SCRIPT = "teacher.sh"
TEACHER_MARK = "r2v-teacher"
"""Its mark in the queue."""
_MOST, _WITHIN = 6, 3600.0
"""Submissions within so many seconds, at most: a server that cannot start would be submitted every minute."""


@dataclass(frozen=True, kw_only=True)
class TeacherJob:
    """The server of one teacher."""

    config: Config
    root: Path

    def look_beside(self) -> None:
        """`look` in a process that nobody waits for: Slurm may be silent for minutes, and the caller has signals to
        answer."""
        sys.stdout.flush()
        sys.stderr.flush()
        if child := os.fork():
            os.waitpid(child, 0)
            return
        if not os.fork():
            with suppress(BaseException):
                self.look()
        os._exit(0)

    def look(self) -> None:
        """Submit it where no server answers and it is not in the queue. A refusal is a line, and the next look asks
        again."""
        folder = folder_of(self.config.teacher, self.root)
        found = read_address(folder)
        if found is not None and asyncio.run(healthy(found.url)):
            return
        comment = f"{TEACHER_MARK}:{folder.name}"
        try:
            with lease(folder / "submitting.lease"):
                rows = [row for row in client.queue() if comment in row.comment.split()]
                if any(row.state in ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING") for row in rows):
                    return
                if not self._may_submit(folder):
                    return
                write_text(folder / "config.yaml", to_yaml(self.config))
                id_ = client.sbatch(self._arguments(comment), self._script(folder))
        except LeaseConflict:
            return  # another stage submits it
        except (R2VError, OSError) as error:
            logger.warning("r2v job: the teacher's job was not submitted: %s", error)
            return
        logger.info("r2v job: the teacher's server was submitted as job %s", id_)

    def _may_submit(self, folder: Path) -> bool:
        """Note a submission; False where so many were lost lately that another would be too."""
        path, now = folder / "submitted.json", time.time()
        try:
            times = [float(one) for one in json.loads(path.read_text()) if now - float(one) < _WITHIN]
        except (OSError, ValueError, TypeError):
            times = []
        if len(times) >= _MOST:
            logger.warning("r2v job: %d jobs of the teacher ended within an hour; see logs/teacher_*.out", len(times))
            return False
        write_text(path, json.dumps([*times, now]) + "\n")
        return True

    def _arguments(self, comment: str) -> list[str]:
        asked = headers.read(self.root / SCRIPTS / TEACHER_SCRIPT).directives
        set_here = {
            "comment": f"{asked.get('comment', '')} {comment}".strip(),
            "output": f"{LOGS}/teacher_%j.out",
            "chdir": str(self.root.resolve()),
        }
        return headers.Resources(directives={**asked, **set_here}).sbatch_args()

    def _script(self, folder: Path) -> str:
        words = ["-m", "r2v", "engine", "serve", "--teacher", "--config", str(folder / "config.yaml")]
        lines = [f"source {ENVIRONMENT} || exit {EnvironmentFault.exit_code}"]
        lines += ["set -euo pipefail", "export HF_HUB_OFFLINE=${HF_HUB_OFFLINE:-1}"]
        return "\n".join(["#!/bin/bash", *lines, f"exec {shlex.join([sys.executable, *words])}", ""])


def teacher_job(words: Sequence[str], root: Path = Path()) -> TeacherJob | None:
    """The job that serves the teacher of a stage's command; None where it needs none."""
    try:
        config = config_of(words)
        rows = [row for row in JOBS if row.command.name == words[0]]
    except R2VError:
        return None  # its stage says so
    if config.teacher.engine != JOB or not any(_asks(config, row) for row in rows):
        return None
    return TeacherJob(config=config, root=root)


def _asks(config: Config, row: Job) -> bool:
    sections = row.load().sections(config)
    return hasattr(sections, "teacher") and bool(getattr(sections, "asks_teacher", True))
