"""Submission of a chain's jobs and of its sentinel. Only this module uses submitit, which writes the header and the
script of a stage's job. Its `SlurmJob` then gives access to an attempt by its id:

    job = submitit.SlurmJob("outputs/.chains/desk_noisy/submitit/%j", "104")
    job.state, job.stdout(), job.result()           # by sacct; the log; the content of exit.json, once it is done

The script starts the runner directly, without srun: the time limit's warning reaches it through `--signal=B:`. One
sentinel, a job of one CPU and five minutes, depends on all stages and runs when any has failed.
The chain is written after every sbatch; jobs that a killed submitter could not record are recognized by their comment.
An ended job is never named in a dependency: Slurm takes one that it has forgotten for a success.
`r2v.slurm.healing.reconcile` decides when a job is submitted.
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
"""Directives that a stage needs, unless its header gives them: USR2 arrives 120 s before the time limit, time enough to
save a checkpoint and requeue; a restart appends to the log."""
_INVALID = "kill-on-invalid-dep"
_SET_HERE = ("job-name", "output", "comment", "dependency", _INVALID)


class StageScript(SlurmExecutor):
    """submitit's executor as a writer of scripts: its `submit` takes a lost answer of sbatch for a failure."""

    @classmethod
    def affinity(cls) -> int:
        """Return a fitness above 0: submitit would test for srun, which a node behind a login node lacks."""
        return 2

    def text(self, command: str) -> str:
        """Return the script that runs this command. The method is private in submitit: its public ones submit."""
        return self._make_submission_file_text(command, uid="")


def submit_stage(root: Path, chain: Chain, job: str, planned: Attempt, waits: Sequence[str]) -> str:
    """Submit a planned attempt that depends on the Slurm jobs `waits`, none of which may have ended; returns its id.
    Bad nodes are excluded unless Slurm has no others for it. Raises SlurmRefused, NoSlurm. Leaves the chain alone."""
    avoiding = without_bad(root, planned.resources)
    try:
        return _submit_stage(root, chain, job, avoiding, planned.overrides, waits)
    except SlurmRefused as error:
        if avoiding == planned.resources:
            raise
        logger.warning(
            "exclude rejected, submitting without it: stage=%s exclude=%s error=%s", job, avoiding["exclude"], error
        )
        return _submit_stage(root, chain, job, planned.resources, planned.overrides, waits)


def _submit_stage(
    root: Path, chain: Chain, job: str, resources: Mapping[str, str], overrides: Sequence[str], waits: Sequence[str]
) -> str:
    directives = stage_directives(root, chain, job, resources, waits)
    folder = chains.folder(root, chain.name) / "submitit"
    for path in (folder, root / LOGS):
        _make_folder(path)
    require()
    executor = StageScript(folder / "%j")
    executor.update_parameters(
        job_name=f"{job}_{chain.name}",
        time=Resources(directives=dict(resources)).time_minutes or None,
        use_srun=False,
        wckey=None,
        stderr_to_stdout=True,
        setup=[*KEEP_SUBMITTED, *environment_lines(root), "set -euo pipefail", *code_lines(chain.name)],
        # submitit spells directives with _, and these have to replace its own
        additional_parameters={
            name if name == "open-mode" else name.replace("-", "_"): value or True for name, value in directives.items()
        },
    )
    attempt = f"{chain.name}/{job}.{chain.jobs[job].next_number}"
    config = chains.folder(Path(), chain.name) / "config.yaml"
    words = [sys.executable, "-m", "r2v.slurm.job.runner", OF, attempt, *chain.jobs[job].command]
    words += ["--config", str(config), *(["--overrides", *overrides] if overrides else [])]
    # exec: Python replaces the batch shell, so that it receives the shell's signals.
    text = executor.text(f"exec {shlex.join(words)}")
    id_ = client.sbatch([f"--comment={directives['comment']}"], text, recorded=chain.slurm_ids)
    paths = JobPaths(executor.folder, id_, task_id=0)
    _make_folder(paths.folder)
    with writing(paths.submission_file):
        paths.submission_file.write_text(text)
        paths.stdout.unlink(missing_ok=True)  # a reinstalled Slurm counts its ids anew
        paths.stdout.symlink_to(os.path.relpath(root / LOGS / f"{job}_{chain.name}_{id_}.out", paths.folder))
    return id_


def stage_directives(
    root: Path, chain: Chain, job: str, resources: Mapping[str, str], waits: Sequence[str]
) -> dict[str, str]:
    """Return the sbatch directives of a stage's job except its name: its header's, and those that a chain needs."""
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


def submit_sentinel(root: Path, chain: Chain, ids: Sequence[str]) -> str:
    """Submit the sentinel of these attempts; returns its id. Raises as `submit_stage` does.

    It starts when one of them has failed; Slurm removes it when none has. With `kill_on_invalid_dep: false` in the site
    profile, for sites that forbid such removal, it starts in any case and ends at once if nothing failed.
    The script opens its log itself, making logs/ anew if needed: Slurm would end the job without a line.
    """
    lines = [
        "#!/bin/bash",
        f'mkdir -p {LOGS} && exec >> "{LOGS}/${{SLURM_JOB_NAME}}_${{SLURM_JOB_ID}}.out" 2>&1',
        *KEEP_SUBMITTED,
        *environment_lines(root),
        "set -euo pipefail",
        *code_lines(chain.name),
        "for again in 1 2 3; do  # killed in the middle, it resumes",
        f"  code=0; {shlex.quote(sys.executable)} -m r2v heal {shlex.quote(chain.name)} {WHOLE} || code=$?",
        f'  [ "$code" = {128 + signal.SIGKILL} ] || break',
        "done",
        'exit "$code"',
    ]
    _make_folder(root / LOGS)
    return client.sbatch(sentinel_args(root, chain, ids), "\n".join(lines) + "\n", recorded=chain.slurm_ids)


def sentinel_dependency(chain: Chain, ids: Sequence[str]) -> str:
    """Return a sentinel's dependency: the failure of any of these attempts, or any end if it would not be removed."""
    kind = "afternotok" if chain.sentinel.get(_INVALID) == "yes" else "afterany"
    return "?".join(f"{kind}:{id_}" for id_ in ids)


def sentinel_args(root: Path, chain: Chain, ids: Sequence[str]) -> list[str]:
    """Return the sbatch arguments of the sentinel of these attempts."""
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
    """Return the lines of a job's script that set up the site's software. They precede `set -eu`, since conda and
    modules use failing commands and unset names."""
    return [f"source {ENVIRONMENT} || exit {EnvironmentFault.exit_code}"] if (root / ENVIRONMENT).exists() else []


def _make_folder(path: Path) -> None:
    """Make a folder if it is missing. Without the log folder Slurm ends a job at once, with 0:53 and no line."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
