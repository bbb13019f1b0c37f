"""The helper array: Slurm tasks beside a job that pull blocks of what its stage plays.

    #R2V evaluate --helpers=15%8      # in the header of 08_evaluate.sh: an array of 15 tasks, at most 8 at once

The job submits the array itself, once its own pace tells that more than an hour is left: a small benchmark never asks
for fifteen nodes, and a job that was healed or put back into the queue has helpers too. Each task runs the job's
command with `rollout.helpers=join`, under what the header asks for. Nobody waits for a helper and nobody heals one:
killed, preempted or refused, the result is the same, later. When the job is done, those that still wait are cancelled;
one that plays ends when nothing is left.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from r2v.errors import EnvironmentFault, R2VError
from r2v.log import logger
from r2v.pipeline import jobs
from r2v.pipeline.helping import require_helpable
from r2v.pipeline.rows import JOIN
from r2v.slurm.chain import job_record
from r2v.slurm.chain.job_record import JobRecord
from r2v.slurm.chain.snapshot import code_lines
from r2v.slurm.client import client
from r2v.slurm.job.command_line import config_of
from r2v.slurm.site import requests
from r2v.slurm.site.headers import Resources
from r2v.storage.files import write_json
from r2v.storage.integrity import hashed
from r2v.storage.paths import LOGS

WORTH_HELPING = 3600.0
"""Seconds that a job must still have before it, at its own pace, for helpers to be asked for."""
_LEFT_OUT = ("dependency", "no-requeue")


@dataclass(kw_only=True)
class HelperArray:
    """The array beside one start of a job."""

    words: Sequence[str]
    """The job's command line, behind `r2v`."""
    name: str
    """Of the chain."""
    job: str
    job_id: str
    resources: Resources
    root: Path = Path()
    considered: bool = False
    """True once Slurm has been asked, which happens once a start."""

    @property
    def comment(self) -> str:
        """The comment of the array in the queue, behind the header's own; the same for every attempt of the job, and
        none of a chain's job."""
        return f"{client.HELPERS_MARK}:{self.name}/{self.job}"

    def look(self, folder: Path) -> None:
        """Submit the array where the records in this folder say that it is worth it. Where they cannot be read (a
        shared disk that fails for a moment) the next look tells: no helper is worth the job."""
        if self.considered:
            return
        with suppress(OSError, ValueError, LookupError, TypeError):
            self.submit_if_worth(job_record.record_at(folder))

    def submit_if_worth(self, record: JobRecord) -> None:
        """Submit the array where the job has long to go and none is in the queue. A refusal is one line."""
        left = job_record.seconds_left(record)
        if self.considered or left is None or left < WORTH_HELPING:
            return
        self.considered = True
        try:
            require_helpable(config_of(self.words), jobs.job(self.job))
            if self._queued():
                return
            id_ = client.sbatch(self._arguments(), self._script(), known=record.helpers)
        except R2VError as error:
            logger.warning("r2v job %s: no helpers (%s); it goes on alone", self.job_id, error)
            return
        logger.info(
            "r2v job %s: %.1f hours are left at this pace; helpers %s were submitted as job %s",
            self.job_id,
            left / 3600,
            self.resources.helpers,
            id_,
        )
        self._remember(record, id_)

    def _remember(self, record: JobRecord, id_: str) -> None:
        """Write the array's id beside what the job says of itself: its cost is the job's."""
        try:
            write_json(record.folder / job_record.HELPERS_FILE, hashed({"arrays": [*record.helpers, id_]}))
        except EnvironmentFault as error:
            logger.warning("r2v job %s: %s", self.job_id, error)

    def end(self, exit_code: int, *, goes_on: bool) -> None:
        """Take the array away with the job: what still waits where the stage is done, all of it where it has failed,
        nothing where the job `goes_on` with its next start, for helpers play on meanwhile."""
        if goes_on:
            return
        try:
            client.cancel([row.id for row in self._queued() if exit_code or row.state == "PENDING"])
        except EnvironmentFault as error:
            logger.warning("r2v job %s: helpers were not cancelled: %s", self.job_id, error)

    def _queued(self) -> list[client.Queued]:
        rows = client.queue(self.name, self.root, mark=client.HELPERS_MARK)
        return [row for row in rows if row.comment.split()[-1:] == [self.comment]]

    def _arguments(self) -> list[str]:
        kept = {name: value for name, value in self.resources.directives.items() if name not in _LEFT_OUT}
        set_here = {
            "array": f"1-{self.resources.helpers}",  # 1-15%8: the tasks, and how many of them at once
            "job-name": f"help_{self.job}_{self.name}",
            "comment": f"{self.resources.directives.get('comment', '')} {self.comment}".strip(),
            "output": f"{LOGS}/%x_%A_%a.out",
            "requeue": "",
            "signal": "B:TERM@120",
            "chdir": str(self.root.resolve()),
        }
        return Resources(directives={**kept, **set_here}).sbatch_args()

    def _script(self) -> str:
        from r2v.slurm.client.submit import (
            environment_lines,  # with submitit, which a job without helpers does not need
        )

        command = shlex.join([sys.executable, "-m", "r2v", *self.words, *JOIN])
        before = [*environment_lines(self.root), "set -euo pipefail", *code_lines(self.name)]
        return "\n".join(["#!/bin/bash", *before, f"exec {command}", ""])


def helper_array(words: Sequence[str], *, name: str, job: str, job_id: str, root: Path = Path()) -> HelperArray | None:
    """The array that the header of a job's script asks for; None where it asks for none, or there is no Slurm."""
    row = next((one for one in jobs.COMMANDS if one.name == words[0] and one.helped), None)
    if not job_id or row is None:
        return None
    try:
        resources = requests.of_job(root, row.script, job, config_of(words))
    except R2VError:
        return None  # the script that was submitted may be gone; the job needs it no more
    if not resources.helpers:
        return None
    return HelperArray(words=words, name=name, job=job, job_id=job_id, resources=resources, root=root)
