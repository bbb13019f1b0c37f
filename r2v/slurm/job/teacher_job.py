"""The teacher's job, kept alive by stages' jobs: submitted if it is not in the queue, and again when it was lost.

    job = teacher_job(words, root)       # None if the command needs no teacher that a job serves
    job.look_beside()                    # at the start of a stage's job, and every minute while it runs

Stages of all chains of the checkout share one server of a model; the first that finds none submits it.
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
from r2v.pipeline.inputs import asks_teacher
from r2v.pipeline.jobs import JOBS
from r2v.slurm.client import client
from r2v.slurm.job.command_line import config_of
from r2v.slurm.site import headers
from r2v.slurm.site.script_text import ENVIRONMENT
from r2v.storage.files import write_text
from r2v.storage.lease import lease
from r2v.storage.paths import LOGS, SCRIPTS

TEACHER_SCRIPT = "teacher.sh"
TEACHER_MARK = "r2v-teacher"
"""The prefix of its comment."""
_MOST, _WITHIN = 6, 3600.0
"""Maximum number of submissions, within seconds: a server that cannot start would be submitted every minute."""


@dataclass(frozen=True, kw_only=True)
class TeacherJob:
    """The Slurm job that serves one teacher."""

    config: Config
    root: Path

    def look_beside(self) -> None:
        """Run `look` in a detached process: Slurm may be silent for minutes, and the caller must answer signals."""
        sys.stdout.flush()
        sys.stderr.flush()
        if child := os.fork():  # twice, so that init reaps the grandchild
            os.waitpid(child, 0)
            return
        if not os.fork():
            with suppress(BaseException):
                self.look()
        os._exit(0)

    def look(self) -> None:
        """Submit the job if no server answers and it is not in the queue. A refusal is logged and retried later."""
        folder = folder_of(self.config.teacher, self.root)
        address = read_address(folder)
        if address is not None and asyncio.run(healthy(address.url)):
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
            logger.warning("r2v job could not submit the teacher's server: error=%s", error)
            return
        logger.info("r2v job submitted the teacher's server: job=%s", id_)

    def _may_submit(self, folder: Path) -> bool:
        """Record a submission; False if `_MOST` were lost lately, so that another would be too."""
        path, now = folder / "submitted.json", time.time()
        try:
            times = [float(at) for at in json.loads(path.read_text()) if now - float(at) < _WITHIN]
        except (OSError, ValueError, TypeError):  # none yet, or cut by a kill
            times = []
        if len(times) >= _MOST:
            logger.warning(
                "r2v job gives up on the teacher's server: ended_within_an_hour=%d remedy=%s",
                *(len(times), "see logs/teacher_*.out"),
            )
            return False
        write_text(path, json.dumps([*times, now]) + "\n")
        return True

    def _arguments(self, comment: str) -> list[str]:
        header = headers.read(self.root / SCRIPTS / TEACHER_SCRIPT).directives
        set_here = {
            "comment": f"{header.get('comment', '')} {comment}".strip(),
            "output": f"{LOGS}/teacher_%j.out",
            "chdir": str(self.root.resolve()),
        }
        return headers.Resources(directives={**header, **set_here}).sbatch_args()

    def _script(self, folder: Path) -> str:
        words = ["-m", "r2v", "engine", "serve", "--teacher", "--config", str(folder / "config.yaml")]
        lines = [f"source {ENVIRONMENT} || exit {EnvironmentFault.exit_code}"]
        lines += ["set -euo pipefail", "export HF_HUB_OFFLINE=${HF_HUB_OFFLINE:-1}"]
        return "\n".join(["#!/bin/bash", *lines, f"exec {shlex.join([sys.executable, *words])}", ""])


def teacher_job(words: Sequence[str], root: Path = Path()) -> TeacherJob | None:
    """Return the job that serves the teacher of a stage's command; None if it needs none."""
    try:
        config = config_of(words)
        rows = [row for row in JOBS if row.command.name == words[0]]
    except R2VError:
        return None  # the stage reports it
    if config.teacher.engine != JOB or not any(asks_teacher(row.load().sections(config)) for row in rows):
        return None
    return TeacherJob(config=config, root=root)
