"""The helper array: Slurm tasks that lease blocks of a stage's episodes.

    #R2V evaluate --helpers=15%8      # in the header of 08_evaluate.sh: an array of 15 tasks, at most 8 at once

The job submits the array itself, once its own pace shows that more than an hour is left: a small benchmark never
requests fifteen nodes, and a healed or requeued job gets helpers too. Each task runs the job's command with
`rollout.helpers=join`, under the same header. Helpers are neither awaited nor healed: if they are killed, preempted or
refused, the result is the same, later. When the job is done, pending ones are cancelled; others end by themselves.
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
"""Seconds that a job must have left, at its own pace, before it submits helpers: less is not worth their queue time."""
_LEFT_OUT = ("dependency", "no-requeue")


@dataclass(kw_only=True)
class HelperArray:
    """The helper array of one start of a job."""

    words: Sequence[str]
    """The job's command line after `r2v`."""
    name: str
    """The chain's name."""
    job: str
    job_id: str
    resources: Resources
    root: Path = Path()
    considered: bool = False
    """True after the one submission of a start was tried."""

    @property
    def comment(self) -> str:
        """The comment of the array, the same for all attempts; its mark keeps it apart from the chain's jobs."""
        return f"{client.HELPERS_MARK}:{self.name}/{self.job}"

    def look(self, folder: Path) -> None:
        """Submit the array if the job's records in this folder show that it is worth it."""
        if self.considered:
            return
        # A shared disk may fail for a moment; the next look tries again, since no helper is worth the job.
        with suppress(OSError, ValueError, LookupError, TypeError):
            self.submit_if_worth(job_record.record_at(folder))

    def submit_if_worth(self, record: JobRecord) -> None:
        """Submit the array if the job has long to go and none is in the queue. A refusal is logged."""
        left = job_record.seconds_left(record)
        if self.considered or left is None or left < WORTH_HELPING:
            return
        self.considered = True
        try:
            require_helpable(config_of(self.words), jobs.job(self.job))
            if self._queued():
                return
            id_ = client.sbatch(self._arguments(), self._script(), recorded=record.helpers)
        except R2VError as error:
            logger.warning("r2v job has no helpers, going on alone: job=%s error=%s", self.job_id, error)
            return
        logger.info(
            "r2v job submitted helpers: job=%s hours_left=%.1f helpers=%s array=%s",
            *(self.job_id, left / 3600, self.resources.helpers, id_),
        )
        self._remember(record, id_)

    def _remember(self, record: JobRecord, id_: str) -> None:
        """Record the array's id in the job's record, to which its cost belongs."""
        try:
            write_json(record.folder / job_record.HELPERS_FILE, hashed({"arrays": [*record.helpers, id_]}))
        except EnvironmentFault as error:
            logger.warning("r2v job could not record its helpers: job=%s error=%s", self.job_id, error)

    def end(self, exit_code: int, *, goes_on: bool) -> None:
        """Cancel the array at the job's end: pending tasks after a success, all after a failure, none if the job
        `goes_on` with its next start, since helpers play on meanwhile."""
        if goes_on:
            return
        try:
            client.cancel([row.id for row in self._queued() if exit_code or row.state == "PENDING"])
        except EnvironmentFault as error:
            logger.warning("r2v job could not cancel its helpers: job=%s error=%s", self.job_id, error)

    def _queued(self) -> list[client.Queued]:
        rows = client.queue(self.name, self.root, mark=client.HELPERS_MARK)
        return [row for row in rows if row.comment.split()[-1:] == [self.comment]]

    def _arguments(self) -> list[str]:
        inherited = {name: value for name, value in self.resources.directives.items() if name not in _LEFT_OUT}
        set_here = {
            "array": f"1-{self.resources.helpers}",  # 1-15%8: the tasks, and how many of them at once
            "job-name": f"help_{self.job}_{self.name}",
            "comment": f"{self.resources.directives.get('comment', '')} {self.comment}".strip(),
            "output": f"{LOGS}/%x_%A_%a.out",
            "requeue": "",
            "signal": "B:TERM@120",
            "chdir": str(self.root.resolve()),
        }
        return Resources(directives={**inherited, **set_here}).sbatch_args()

    def _script(self) -> str:
        from r2v.slurm.client.submit import environment_lines  # loads submitit, unneeded without helpers

        command = shlex.join([sys.executable, "-m", "r2v", *self.words, *JOIN])
        before = [*environment_lines(self.root), "set -euo pipefail", *code_lines(self.name)]
        return "\n".join(["#!/bin/bash", *before, f"exec {command}", ""])


def helper_array(words: Sequence[str], *, name: str, job: str, job_id: str, root: Path = Path()) -> HelperArray | None:
    """Return the array that a job's header requests; None for none, or without Slurm."""
    row = next((command for command in jobs.COMMANDS if command.name == words[0] and command.helped), None)
    if not job_id or row is None:
        return None
    try:
        resources = requests.of_job(root, row.script, job, config_of(words))
    except R2VError:
        return None  # the script may have been removed or edited since the submission; the job no longer needs it
    if not resources.helpers:
        return None
    return HelperArray(words=words, name=name, job=job, job_id=job_id, resources=resources, root=root)
