"""The script of a stage's job: written by submitit, which makes its header and its folder; run by our runner."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from typing import Any

from submitit.core.core import Job
from submitit.slurm.slurm import SlurmExecutor

from r2v.slurm import client
from r2v.storage.files import writing


class StageScript(SlurmExecutor):
    """submitit's executor. What the job runs is our runner, by its command line, without the detour over a pickle and
    a Python of its own; nor does it ask for an srun, which is not used here. Its script goes through our own door."""

    command = ""
    """What the job runs, as a line of its script."""
    arguments: Sequence[str] = ()
    known: Collection[str] = ()
    """Ids of the chain's jobs: none of them is the one that is submitted now."""

    @property
    def _submitit_command_str(self) -> str:
        return self.command

    def _submit_command(self, command: str) -> Job[Any]:
        text = self._make_submission_file_text(command, uuid.uuid4().hex)
        id_ = client.sbatch(self.arguments, text, known=self.known)
        job = self.job_class(folder=self.folder, job_id=id_, tasks=[0])
        with writing(job.paths.submission_file):
            job.paths.folder.mkdir(parents=True, exist_ok=True)
            job.paths.submission_file.write_text(text)
        return job

    @classmethod
    def affinity(cls) -> int:
        """How well it suits this machine; above 0: it does."""
        return 2


def parameter(name: str) -> str:
    """A directive as submitit spells the same one of its own, so that ours takes its place."""
    return name if name == "open-mode" else name.replace("-", "_")
