"""Submission: putting jobs of a chain into the queue, so that none is there twice. Only this module knows submitit,
which writes the header and the script of a stage's job. Its `SlurmJob` then answers for an attempt by its id:

    job = submitit.SlurmJob("outputs/.chains/desk_noisy/submitit/%j", "104")
    job.state, job.stdout(), job.result()           # by sacct; the log; the content of exit.json, once it is done

The script starts our runner directly (no srun: the time limit's warning reaches it through `--signal=B:`). Beside the
stages waits one sentinel: a job of one CPU and five minutes that runs when any has failed.
The chain is written after every sbatch; jobs that a killed submitter had no time to write are known by their comment.
A job that has ended is never named in a dependency: Slurm takes one that it has forgotten for a success.
What is submitted, and when, is decided by r2v.slurm.healing.reconcile.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from submitit.core.utils import JobPaths
from submitit.slurm.slurm import SlurmExecutor

from r2v.errors import EnvironmentFault
from r2v.log import logger
from r2v.slurm.chain import chain as chains
from r2v.slurm.chain.chain import OF, WHOLE, Attempt, Chain
from r2v.slurm.chain.experience import without_bad
from r2v.slurm.chain.snapshot import code_lines
from r2v.slurm.client import client
from r2v.slurm.client.command import SlurmRefused, require
from r2v.slurm.client.variables import KEEP_SUBMITTED
from r2v.slurm.site.headers import Resources
from r2v.slurm.site.script_text import ENVIRONMENT
from r2v.storage.files import writing
from r2v.storage.paths import LOGS

REQUIRED_DIRECTIVES = {"signal": "B:USR2@120", "open-mode": "append"}
"""Directives that a stage needs and gets where its header does not give them."""
_INVALID = "kill-on-invalid-dep"
_SET_HERE = ("job-name", "output", "comment", "dependency", _INVALID)


class StageScript(SlurmExecutor):
    """submitit's executor without its `submit`, which asks sbatch once and takes a lost answer for a failure."""

    @classmethod
    def affinity(cls) -> int:
        """Its fitness for this machine, above 0: a node that submits through a login node has no srun."""
        return 2

    def text(self, command: str) -> str:
        """The script that runs this command, by submitit's one private name here: its public calls submit."""
        return self._make_submission_file_text(command, uid="")


def submit_stage(root: Path, chain: Chain, job: str, planned: Attempt, waits: Sequence[str]) -> str:
    """Submit a planned attempt behind these Slurm jobs, none of which may have ended; returns its id. It avoids nodes
    that are known as bad, unless Slurm has no others for it. Raises SlurmRefused with Slurm's reason, NoSlurm. The
    chain is not changed."""
    avoiding = without_bad(root, planned.resources)
    try:
        return _submit_stage(root, chain, job, avoiding, planned.overrides, waits)
    except SlurmRefused as error:
        if avoiding == planned.resources:
            raise
        logger.warning("%s: Slurm rejected --exclude=%s (%s); submitting without it", job, avoiding["exclude"], error)
        return _submit_stage(root, chain, job, planned.resources, planned.overrides, waits)


def _submit_stage(
    root: Path, chain: Chain, job: str, resources: Mapping[str, str], overrides: Sequence[str], waits: Sequence[str]
) -> str:
    directives = stage_directives(root, chain, job, resources, waits)
    folder = chains.folder(root, chain.name) / "submitit"
    for made in (folder, root / LOGS):
        _make_folder(made)
    require()
    executor = StageScript(folder / "%j")
    executor.update_parameters(
        job_name=f"{job}_{chain.name}",
        time=Resources(directives=dict(resources)).time_minutes or None,
        use_srun=False,
        wckey=None,
        stderr_to_stdout=True,
        setup=[*KEEP_SUBMITTED, *environment_lines(root), "set -euo pipefail", *code_lines(chain.name)],
        additional_parameters={_parameter(name): value or True for name, value in directives.items()},
    )
    attempt = f"{chain.name}/{job}.{chain.jobs[job].next_number}"
    config = chains.folder(Path(), chain.name) / "config.yaml"
    words = [sys.executable, "-m", "r2v.slurm.job.runner", OF, attempt, *chain.jobs[job].command]
    words += ["--config", str(config), *(["--overrides", *overrides] if overrides else [])]
    # exec: Python takes the batch shell's place, and with it the signals that are sent to that.
    text = executor.text(f"exec {shlex.join(words)}")
    id_ = client.sbatch([f"--comment={directives['comment']}"], text, known=chain.slurm_ids)
    paths = JobPaths(executor.folder, id_, task_id=0)
    _make_folder(paths.folder)
    with writing(paths.submission_file):
        paths.submission_file.write_text(text)
        paths.stdout.unlink(missing_ok=True)  # of a Slurm that has begun to count anew
        paths.stdout.symlink_to(os.path.relpath(root / LOGS / f"{job}_{chain.name}_{id_}.out", paths.folder))
    return id_


def stage_directives(
    root: Path, chain: Chain, job: str, resources: Mapping[str, str], waits: Sequence[str]
) -> dict[str, str]:
    """All that a stage's job asks of sbatch, its name aside: what its header says, and what a chain needs."""
    directives = {name: value for name, value in resources.items() if name not in _SET_HERE}
    if "no-requeue" not in directives:
        directives["requeue"] = ""
    return {
        **REQUIRED_DIRECTIVES,
        **directives,
        **({_INVALID: "no"} if _INVALID in chain.sentinel else {}),
        "comment": chain.comment(job, attempt=chain.jobs[job].next_number, own=resources.get("comment", "")),
        "output": f"{LOGS}/%x_%j.out",
        "chdir": str(root.resolve()),
        **({"dependency": f"afterok:{':'.join(waits)}"} if waits else {}),
    }


def _parameter(name: str) -> str:
    """A directive as submitit spells the same one of its own, so that ours takes its place."""
    return name if name == "open-mode" else name.replace("-", "_")


def submit_sentinel(root: Path, chain: Chain, ids: Sequence[str]) -> str:
    """Submit the sentinel of these attempts; returns its id. Raises as `submit_stage` does.

    It starts when one of them has failed, and Slurm ends it by itself when none has. Where the site wants no job that
    Slurm ends so, the site profile says `kill_on_invalid_dep: false`: it starts in any case, and ends at once.
    Its log is opened by itself: where logs/ is gone it makes it again, and Slurm would have ended it unheard.
    """
    lines = [
        "#!/bin/bash",
        f'mkdir -p {LOGS} && exec >> "{LOGS}/${{SLURM_JOB_NAME}}_${{SLURM_JOB_ID}}.out" 2>&1',
        *KEEP_SUBMITTED,
        *environment_lines(root),
        "set -euo pipefail",
        *code_lines(chain.name),
        "for again in 1 2 3; do  # killed in the middle, it goes on where it was",
        f"  code=0; {shlex.quote(sys.executable)} -m r2v heal {shlex.quote(chain.name)} {WHOLE} || code=$?",
        f'  [ "$code" = {128 + signal.SIGKILL} ] || break',
        "done",
        'exit "$code"',
    ]
    _make_folder(root / LOGS)
    return client.sbatch(sentinel_args(root, chain, ids), "\n".join(lines) + "\n", known=chain.slurm_ids)


def sentinel_dependency(chain: Chain, ids: Sequence[str]) -> str:
    """The dependency of a sentinel: the failure of any of these attempts, or the end of any."""
    kind = "afternotok" if chain.sentinel.get(_INVALID) == "yes" else "afterany"
    return "?".join(f"{kind}:{id_}" for id_ in ids)


def sentinel_args(root: Path, chain: Chain, ids: Sequence[str]) -> list[str]:
    """All that the sentinel of these attempts asks of sbatch."""
    set_here = {
        "job-name": f"heal_{chain.name}",
        "comment": chain.comment(WHOLE, sentinel=True, own=chain.sentinel.get("comment", "")),
        "output": "/dev/null",
        "requeue": "",
        "chdir": str(root.resolve()),
        "dependency": sentinel_dependency(chain, ids),
    }
    return Resources(directives={**chain.sentinel, **set_here}).sbatch_args()


def environment_lines(root: Path) -> list[str]:
    """The lines of a job's script that make the site's software known to it, as in the scripts of the folder: before
    the shell is told to end at a failure or at a name that is not set, for what conda and modules run has both."""
    return [f"source {ENVIRONMENT} || exit {EnvironmentFault.exit_code}"] if (root / ENVIRONMENT).exists() else []


def _make_folder(path: Path) -> None:
    """Make a folder where there is none. Without that of the logs Slurm ends a job at once, with 0:53 and no line."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
