"""Submission: putting jobs of a chain into the queue, so that none is there twice. Only this module and the
script of a stage know submitit.

Each stage is one Checkpointable callable that Slurm starts directly (no srun: the time limit's warning reaches it
through `--signal=B:`), each with a sentinel: a job of one CPU and five minutes that runs when its stage has failed.
The chain is written after every sbatch; jobs that a killed submitter had no time to write are known by their comment.
A job that has ended is never named in a dependency: Slurm takes one that it has forgotten for a success.
"""

from __future__ import annotations

import logging
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from submitit.helpers import Checkpointable

from r2v.errors import EnvironmentFault
from r2v.log import logger
from r2v.slurm import chain as chains
from r2v.slurm import client
from r2v.slurm.bad_nodes import without_bad
from r2v.slurm.chain import ASKED_FOR, Attempt, Chain, comment
from r2v.slurm.client import Queued, SlurmRefused
from r2v.slurm.headers import Resources
from r2v.slurm.learned_sizes import learn
from r2v.slurm.requests import kept_sentinel
from r2v.slurm.runner import OF
from r2v.slurm.snapshot import code_lines
from r2v.slurm.stage_script import StageScript, parameter
from r2v.slurm.write_headers import ENVIRONMENT
from r2v.storage.files import writing
from r2v.storage.paths import LOGS

REQUIRED_DIRECTIVES = {"signal": "B:USR2@120", "open-mode": "append"}
"""Directives that a stage needs and gets where its header does not give them."""
_INVALID = "kill-on-invalid-dep"
_SET_HERE = ("job-name", "output", "error", "comment", "dependency", _INVALID)


class StageJob(Checkpointable):
    """What submitit pickles: the command line of one stage, and its chain and job. Jobs of an earlier version in the
    queue run their pickle, which names this class and its attributes: they stay as they are."""

    def __init__(self, words: Sequence[str], name: str, job: str) -> None:
        self.words, self.name, self.job = list(words), name, job

    def __call__(self) -> None:
        """Run the stage, and end with its own exit code (submitit would make a 1 of it)."""
        from r2v.log import setup
        from r2v.slurm.runner import run

        setup()
        sys.exit(run(self.words, name=self.name, job=self.job))


def words_of(root: Path, chain: Chain, job: str, overrides: Sequence[str]) -> list[str]:
    """The `r2v` command line of a job, on the configuration that the chain keeps."""
    config = chains.folder(Path(), chain.name) / "config.yaml"
    return [*chain.jobs[job].command, "--config", str(config), *(["--overrides", *overrides] if overrides else [])]


def submit(
    root: Path,
    chain: Chain,
    job: str,
    resources: Mapping[str, str],
    *,
    reason: str,
    overrides: Sequence[str] = (),
    counted: bool = True,
) -> Chain:
    """Submit a job behind the unfinished jobs that it needs, then its sentinel; the chain is written after each.

    Raises SlurmRefused with Slurm's reason, NoSlurm, and EnvironmentFault where a job that it needs has failed:
    what was submitted before is written and stays.
    """
    waits = _unfinished(root, chain, job)
    id_ = _submit_where_nodes_are_sound(root, chain, job, resources, overrides, waits)
    if reason not in ASKED_FOR and (before := chain.jobs[job].latest) is not None:
        learn(root, chain.name, job, before.resources, resources)
    attempt = Attempt(
        id=id_,
        resources=dict(resources),
        overrides=tuple(overrides),
        reason=reason,
        counted=counted,
        submitted_at=chains.now(),
    )
    chain = chain.with_attempt(job, attempt)
    chains.write(root, chain)
    return watch(root, chain, job)


def watch(root: Path, chain: Chain, job: str) -> Chain:
    """Submit the sentinel of a job's latest attempt, and write it down."""
    latest = chain.jobs[job].latest
    assert latest is not None
    sentinel = _submit_sentinel(root, chain, job, latest.id)
    chain = chain.with_attempt(job, replace(latest, sentinel=sentinel))
    chains.write(root, chain)
    return chain


def adopt(root: Path, chain: Chain, job: str, in_queue: Attempt, sentinels: Sequence[Queued]) -> Chain:
    """Take a job that is in the queue as the latest attempt, and give it what a killed submitter left out: its place
    in the chain (as `in_queue`, where nothing is written of it) and its sentinel."""
    attempt = next((known for known in chain.jobs[job].attempts if known.id == in_queue.id), in_queue)
    behind = re.compile(rf"after(?:notok|any):{attempt.id}\b")
    sentinel = next((queued.id for queued in sentinels if behind.search(queued.dependency)), None)
    attempt = replace(attempt, sentinel=sentinel)
    if attempt != chain.jobs[job].latest:
        chain = chain.with_attempt(job, attempt)
        chains.write(root, chain)
    return chain if sentinel else watch(root, chain, job)


def retarget(root: Path, chain: Chain, names: Sequence[str]) -> list[str]:
    """Set what each of these waiting jobs waits for to the latest unfinished attempts of all that it needs; returns
    the jobs that wait so now. One of whose needs has failed and is not made again stays as it is: blocked."""
    retargeted = []
    for name in names:
        latest, rows = chain.jobs[name].latest, _rows(chain)
        row = rows.get(latest.id) if latest is not None else None
        if row is None or row.state != "PENDING":
            continue
        active = {id_: queued.state for id_, queued in rows.items()}
        states = {need: _state(root, chain, need, active) for need in chain.jobs[name].needs}
        if "failed" in states.values():
            continue
        ids = [_latest(chain, need) for need, state in states.items() if state == "active"]
        mark = comment(chain.name, name, chain.config_sha)
        unchanged = set(re.findall(r"afterok:(\d+)", row.dependency)) == set(ids) and row.comment == mark
        if unchanged or client.update(row.id, dependency=f"afterok:{':'.join(ids)}" if ids else "", comment=mark):
            retargeted.append(name)
    return retargeted


def finished_well(root: Path, chain: Chain, job: str) -> bool:
    """Whether a job that is not in the queue has succeeded: by the controller while it remembers the job, else by the
    job's own record, else by accounting."""
    skipped, latest = chain.jobs[job].skipped, chain.jobs[job].latest
    if skipped or latest is None:
        return bool(skipped)
    state = client.show(latest.id).get("JobState", "")
    recorded = chains.record(root, chain.name, latest.id).exit
    if state in client.ENDED:
        return state == "COMPLETED" and not (recorded or {}).get("kind")
    if recorded is not None:
        return recorded.get("rc") == 0
    rows = client.accounting([latest.id]).jobs.get(latest.id, [])
    return bool(rows) and rows[-1].state == "COMPLETED"


def in_queue(chain: Chain) -> dict[str, str]:
    """Slurm id -> state of every job of the chain that has not ended, now."""
    return {id_: row.state for id_, row in _rows(chain).items()}


def _rows(chain: Chain) -> dict[str, Queued]:
    return {row.id: row for row in client.queue(chain.name)}


def _state(root: Path, chain: Chain, job: str, active: Mapping[str, str]) -> str:
    latest = chain.jobs[job].latest
    if latest is not None and latest.id in active and not chain.jobs[job].skipped:
        return "active"
    return "done" if finished_well(root, chain, job) else "failed"


def _latest(chain: Chain, job: str) -> str:
    latest = chain.jobs[job].latest
    assert latest is not None
    return latest.id


def _unfinished(root: Path, chain: Chain, job: str) -> list[str]:
    """The ids that a job must wait for. Raises EnvironmentFault where what it needs has failed meanwhile."""
    needs = chain.jobs[job].needs
    active = in_queue(chain) if needs else {}
    states = {need: _state(root, chain, need, active) for need in needs}
    for need, state in states.items():
        if state == "failed":
            latest = chain.jobs[need].latest
            ended = f"job {latest.id} has ended without success" if latest else "it was never submitted"
            raise EnvironmentFault(
                f"{job} was not submitted: it needs {need}, and {ended}; what was submitted stays. "
                f"See `r2v explain {chain.name}`, then run the same command again"
            )
    return [_latest(chain, need) for need, state in states.items() if state == "active"]


def _submit_where_nodes_are_sound(
    root: Path, chain: Chain, job: str, resources: Mapping[str, str], overrides: Sequence[str], waits: Sequence[str]
) -> str:
    """Submit away from nodes that are known as bad; anywhere, where Slurm has no others for this job."""
    avoiding = without_bad(root, resources)
    try:
        return _submit_stage(root, chain, job, avoiding, overrides, waits)
    except SlurmRefused as error:
        if avoiding == dict(resources):
            raise
        logger.warning("%s: not without %s (%s); it may go there", job, avoiding["exclude"], error)
    return _submit_stage(root, chain, job, resources, overrides, waits)


def _submit_stage(
    root: Path, chain: Chain, job: str, resources: Mapping[str, str], overrides: Sequence[str], waits: Sequence[str]
) -> str:
    requested = Resources(directives=dict(resources))
    directives = {name: value for name, value in resources.items() if name not in _SET_HERE}
    if "no-requeue" not in directives:
        directives["requeue"] = ""
    directives = {
        **REQUIRED_DIRECTIVES,
        **directives,
        **({_INVALID: "no"} if _INVALID in kept_sentinel(chain.sentinel) else {}),
        "comment": comment(chain.name, job, chain.config_sha),
        "output": f"{LOGS}/%x_%j.out",
        "chdir": str(root.resolve()),
    }
    if waits:
        directives["dependency"] = f"afterok:{':'.join(waits)}"
    payload = StageJob(words_of(root, chain, job, overrides), chain.name, job)
    executor = _executor(root, chain, payload)
    executor.update_parameters(
        job_name=f"{job}_{chain.name}",
        time=requested.time_minutes or None,
        use_srun=False,
        wckey=None,
        stderr_to_stdout=True,
        setup=[*environment_lines(root), "set -euo pipefail", *code_lines(chain.name)],
        additional_parameters={parameter(name): value or True for name, value in directives.items()},
    )
    executor.arguments = [f"--comment={directives['comment']}"]
    executor.known = chain.slurm_ids
    _make_logs(root)
    with client.outside():
        logging.getLogger("submitit").setLevel(logging.ERROR)
        return str(executor.submit(payload).job_id)


def _executor(root: Path, chain: Chain, payload: StageJob) -> StageScript:
    folder = chains.folder(root, chain.name) / "submitit"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    client.require()
    executor = StageScript(folder / "%j")
    # exec: Python takes the batch shell's place, and with it the signals that are sent to that.
    executor.command = "exec " + shlex.join(
        [sys.executable, "-m", "r2v.slurm.runner", OF, f"{payload.name}/{payload.job}", *payload.words]
    )
    return executor


def _submit_sentinel(root: Path, chain: Chain, job: str, id_: str) -> str:
    asked = kept_sentinel(chain.sentinel)
    lines = [
        "#!/bin/bash",
        *environment_lines(root),
        "set -euo pipefail",
        *code_lines(chain.name),
        f"exec {shlex.quote(sys.executable)} -m r2v heal {shlex.quote(chain.name)} {job}",
    ]
    _make_logs(root)
    return client.sbatch(
        [
            *Resources(directives=asked).sbatch_args(),
            f"--job-name=heal_{job}_{chain.name}",
            f"--comment={comment(chain.name, job, chain.config_sha, sentinel=True)}",
            f"--output={LOGS}/%x_%j.out",
            "--open-mode=append",
            "--requeue",
            f"--chdir={root.resolve()}",
            f"--dependency={'afternotok' if _INVALID in asked else 'afterany'}:{id_}",
        ],
        "\n".join(lines) + "\n",
        known=chain.slurm_ids,
    )


def environment_lines(root: Path) -> list[str]:
    """The lines of a job's script that make the site's software known to it, as in the scripts of the folder: before
    the shell is told to end at a failure or at a name that is not set, for what conda and modules run has both."""
    return [f"source {ENVIRONMENT} || exit {EnvironmentFault.exit_code}"] if (root / ENVIRONMENT).exists() else []


def _make_logs(root: Path) -> None:
    """Make the folder of the logs: without it Slurm ends a job at once, with 0:53 and no message."""
    with writing(root / LOGS):
        (root / LOGS).mkdir(parents=True, exist_ok=True)
