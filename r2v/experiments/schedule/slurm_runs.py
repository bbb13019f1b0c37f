"""Slurm runs: runs of an experiment as jobs, or chains of jobs, in the queue.

A run over a stage is its own chain, named by its prefix and submitted as by `r2v run_all`: a job shared with another
chain of the checkout is submitted once, failures are healed, and figures are read from the published results. A run of
a command or a simulation is one job, identified by its comment; it claims its folder by a symbolic link with its id, so
that a second job of the same run ends at once. No state lives in the submitting process: after a restart it finds its
runs in the queue.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from r2v.errors import EnvironmentFault, InputError, R2VError, UsageError
from r2v.experiments.records import OUTPUT, RETURN_CODE, SPEC_COPY, RunRecord, chosen, read_record, write_record
from r2v.experiments.schedule.launcher import RUN_DIR, RunEnd, left_code, words_of
from r2v.experiments.specification.spec import ExperimentSpec, job_resources, read_spec
from r2v.experiments.views import LEASE
from r2v.llm.providers.keys import allowed
from r2v.log import logger
from r2v.slurm.client import client
from r2v.slurm.client.command import require
from r2v.storage.files import write_text
from r2v.storage.lease import lease
from r2v.storage.record import FOLDER
from r2v.trackers import TRACKER_GROUP

if TYPE_CHECKING:
    from r2v.slurm.client.client import Queued
    from r2v.slurm.views.chain_status import ChainStatus

MARK = "r2v-point"
"""Prefix of the comment of a run's job: r2v-point:<experiment>/<run>/<attempt>."""
TAKEN_BY = "slurm_job"
"""Link in a run's folder with the id of its job."""
_SURE = 2
"""Polls that must agree before a run without a return code counts as failed: file systems and queues lag."""

_SCRIPT = """\
#!/bin/bash
{environment}
export {exports}
ln -s "$SLURM_JOB_ID" {taken} 2> /dev/null || [ "$(readlink {taken})" = "$SLURM_JOB_ID" ] || exit 0
rm -f {code}
{words} < /dev/null
code=$?
echo $code > {code}.new && mv {code}.new {code}
exit $code
"""


@dataclass(kw_only=True)
class SlurmLooks:
    """Slurm's state of an experiment's runs, queried for all of them at most every `every` seconds."""

    every: float = 10.0
    chains: set[str] = field(default_factory=set)
    """Names of the queried chains."""
    number: int = 0
    rows: Mapping[str, Queued] = field(default_factory=dict)
    statuses: Mapping[str, ChainStatus] = field(default_factory=dict)
    codes: Mapping[str, int] = field(default_factory=dict)
    """Chain -> exit code recorded by its last failed job."""
    _at: float = float("-inf")

    def since(self, number: int) -> bool:
        """True if there is a query later than `number`; query Slurm if it is time. False if Slurm does not answer."""
        if time.monotonic() - self._at >= self.every:
            self._ask()
            self._at = time.monotonic()
        return self.number > number

    def _ask(self) -> None:
        from r2v.slurm.chain import chain as chains
        from r2v.slurm.views.chain_status import statuses
        from r2v.slurm.views.sources import gather

        names = [name for name in sorted(self.chains) if name in chains.names()]
        sources = gather(names)
        if sources.slurm.queue is None:
            logger.warning("Slurm's queue unavailable, retrying: error=%s", sources.slurm.queue_down)
            return
        self.rows = sources.slurm.queue
        self.statuses = {status.chain.name: status for status in statuses(sources)}
        exits = {name: [job.exit for job in sources.files[name].records.values() if job.exit] for name in names}
        self.codes = {
            name: next((record["rc"] for record in reversed(records) if record.get("rc")), 1)
            for name, records in exits.items()
        }
        self.number += 1


def chain_name(folder: Path, run: str) -> str:
    """Return the prefix of a run over a stage, which names its chain."""
    return f"{folder.name}-{run}"


def text_of(folder: Path, spec: ExperimentSpec, run: RunRecord, text: str) -> str:
    """Return the configuration of a run in the queue; that of a chain has its own prefix."""
    if spec.stage is None:
        return text
    from r2v.config import to_yaml
    from r2v.config.yaml_text import read
    from r2v.experiments.point import config_of

    return to_yaml(replace(config_of(read(text, run.run).mapping()), prefix=chain_name(folder, run.run)))


def submitted_run(
    folder: Path, spec: ExperimentSpec, run: RunRecord, looks: SlurmLooks, flags: Sequence[str] = ()
) -> ChainRun | JobRun:
    """Return a run to submit, or one already submitted as `run.chain`."""
    if spec.stage is not None:
        name = run.chain or chain_name(folder, run.run)
        return ChainRun(run=run, name=name, stage=spec.stage, experiment=folder, looks=looks)
    attempt = 1 + len(list(Path(run.run_dir).parent.glob(f"{run.run}.attempt*")))
    mark = run.chain or f"{MARK}:{folder.name}/{run.run}/{attempt}"
    adopted = run.chain is not None
    return JobRun(run=run, name=mark, spec=spec, experiment=folder, looks=looks, flags=flags, adopted=adopted)


def require_accepted(spec: ExperimentSpec) -> None:
    """Raise NoSlurm without Slurm on this machine, UsageError if Slurm would refuse the job of a run."""
    from r2v.slurm.site import script_text
    from r2v.slurm.submit_missing import check_request

    require()
    script_text.report()
    if spec.stage is not None:
        return  # submitting a chain checks each of its jobs
    answer = check_request(job_resources(spec.resources))
    if not answer.ok:
        raise UsageError(f"{spec.path}: this cluster will not give what a run asks for: {answer.line}; see resources")


@contextlib.contextmanager
def _in_group(experiment: Path) -> Iterator[None]:
    """Submit jobs in this block under the experiment's tracker group, which healing keeps."""
    before = os.environ.get(TRACKER_GROUP)
    os.environ[TRACKER_GROUP] = experiment.name
    try:
        yield
    finally:
        os.environ.pop(TRACKER_GROUP)
        if before is not None:
            os.environ[TRACKER_GROUP] = before


@dataclass(kw_only=True)
class ChainRun:
    """A run over a stage of the pipeline, as a chain of Slurm jobs."""

    run: RunRecord
    name: str
    stage: str
    experiment: Path
    looks: SlurmLooks
    _seen: int = 0
    _broken: int = 0

    def __post_init__(self) -> None:
        self.looks.chains.add(self.name)
        self._seen = self.looks.number

    def go(self) -> None:
        """Submit the chain's jobs that are neither finished nor in the queue. Raise UsageError if Slurm refuses them; a
        full or unavailable queue is retried at the next poll."""
        from r2v.experiments.point import jobs_of
        from r2v.memory.profile_of_model import configured
        from r2v.pipeline.graph import selection, upstream
        from r2v.slurm import run_all

        config, output = configured(self.run.config_path), io.StringIO()
        rows = selection(config)[0]
        needed = upstream(jobs_of(self.stage, config), rows)
        without = [row.name for row in rows if row.name not in needed]
        try:
            with contextlib.redirect_stdout(output), _in_group(self.experiment):
                run_all.submit(config=self.run.config_path, without=without, allow_env=allowed())
        except EnvironmentFault as error:
            logger.warning("submission failed, retrying: run=%s error=%s", self.run.run, error)
            self._broken = -1
        write_text(Path(self.run.run_dir) / OUTPUT, output.getvalue())

    def look(self) -> RunEnd | None:
        """Return the end of the chain, complete or failed for good, or None while it is neither."""
        if not self.looks.since(self._seen):
            return None
        self._seen = self.looks.number
        status = self.looks.statuses.get(self.name)
        states = {job.state for job in status.jobs} if status is not None else set[str]()
        if status is not None and states and status.exit_code == 0:
            return self._made()
        if status is not None and states and status.exit_code != 1:
            self._broken = 0
            if not any(f" r2v:{self.name}/" in f" {row.comment}" for row in self.looks.rows.values()):
                self._mend()
            return None
        self._broken += 1
        if self._broken < _SURE:
            self._mend() if states and "not submitted" not in states else self.go()
            return None
        return self._given_up(status)

    def _made(self) -> RunEnd | None:
        from r2v.config import load
        from r2v.experiments.point import jobs_of, leave_figures
        from r2v.pipeline.graph import selection, upstream
        from r2v.pipeline.inputs import published
        from r2v.pipeline.jobs import JOBS

        self._mend()  # publishes artifacts made by other chains for this one
        config = load(Path(self.run.config_path))
        until = jobs_of(self.stage, config)
        needed = upstream(until, selection(config)[0])
        try:
            artifacts = {row.name: published(config, row.name) for row in JOBS if row.name in needed}
        except InputError as error:  # the file system may lag behind the queue
            self._broken += 1
            return None if self._broken < _SURE else RunEnd(return_code=error.exit_code, line=str(error))
        leave_figures(config, Path(self.run.run_dir), until, artifacts)
        return RunEnd(return_code=0)

    def _mend(self) -> None:
        from r2v.slurm.healing.reconcile import reconcile

        try:
            for line in reconcile(self.name, wait=5.0):
                logger.warning("chain not reconciled, retrying: chain=%s reason=%s", self.name, line)
        except R2VError as error:
            logger.warning("reconcile failed, retrying: chain=%s error=%s", self.name, error)

    def _given_up(self, status: ChainStatus | None) -> RunEnd:
        bad = [job for job in status.jobs if job.state in ("failed", "cancelled", "not submitted")] if status else []
        line = "; ".join(f"{job.job} {job.state}: {job.words}" for job in bad) or "it was never submitted"
        self.stop(0.0)
        return RunEnd(return_code=self.looks.codes.get(self.name, 1), line=f"{line}; r2v explain {self.name}")

    def stop(self, patience: float) -> None:
        """Cancel the chain's jobs in the queue, except those that other chains need."""
        from r2v.slurm import run_all
        from r2v.slurm.chain import chain as chains

        if self.name in chains.names():
            with contextlib.redirect_stdout(io.StringIO()):
                run_all.cancel(name=self.name)


@dataclass(kw_only=True)
class JobRun:
    """A run of a command, or a simulation, as one Slurm job."""

    run: RunRecord
    name: str
    """Comment of the job."""
    spec: ExperimentSpec
    experiment: Path
    looks: SlurmLooks
    flags: Sequence[str] = ()
    adopted: bool = False
    """True if another process has submitted it, or was about to."""
    _seen: int = 0
    _gone: int = 0

    def __post_init__(self) -> None:
        self._seen = self.looks.number

    def go(self) -> None:
        """Submit the job unless another process has submitted it or was about to."""
        if self.adopted:
            return
        folder, resources = Path(self.run.run_dir), job_resources(self.spec.resources)
        own = resources.directives.get("comment", "")
        directives = {name: value for name, value in resources.directives.items() if name != "comment"}
        arguments = [
            *replace(resources, directives=directives).sbatch_args(),
            *([] if "no-requeue" in directives else ["--requeue"]),
            f"--job-name={self.run.run}_{self.experiment.name}",
            f"--comment={f'{own} {self.name}'.lstrip()}",
            f"--output={(folder / OUTPUT).resolve()}",
            "--open-mode=append",
            f"--chdir={Path().resolve()}",
        ]
        write_text(folder / OUTPUT, "")
        id_ = client.sbatch(arguments, self._script(folder.resolve()))
        logger.info("run submitted: run=%s job=%s", self.run.run, id_)

    def _script(self, folder: Path) -> str:
        from r2v.slurm.client.submit import environment_lines

        exports = {RUN_DIR: str(folder), FOLDER: str(folder), TRACKER_GROUP: self.experiment.name}
        return _SCRIPT.format(
            environment="\n".join(environment_lines(Path())),
            exports=" ".join(f"{name}={shlex.quote(value)}" for name, value in exports.items()),
            taken=shlex.quote(str(folder / TAKEN_BY)),
            code=shlex.quote(str(folder / RETURN_CODE)),
            words=shlex.join(words_of(self.spec, self.run, self.flags)),
        )

    def look(self) -> RunEnd | None:
        """Return the end of the job, as recorded by the run or else by Slurm, or None while it is in the queue."""
        if (code := left_code(Path(self.run.run_dir))) is not None:
            return RunEnd(return_code=code)
        if not self.looks.since(self._seen):
            return None
        self._seen = self.looks.number
        if self._ids():
            self._gone = 0
            return None
        self._gone += 1
        if self._gone < _SURE:
            return None
        return RunEnd(return_code=None if self.adopted else 1, line=self._ended())

    def _ids(self) -> list[str]:
        ours = client.of_chain(self.looks.rows.values(), self.experiment.name, Path(), mark=MARK)
        return [row.id for row in ours if row.comment.endswith(self.name)]

    def _ended(self) -> str:
        """Return Slurm's account of a job without a return code."""
        link = Path(self.run.run_dir) / TAKEN_BY
        if not link.is_symlink():
            return "its Slurm job is gone and had not begun"
        id_ = str(link.readlink())
        rows = client.accounting([id_]).jobs.get(id_, [])
        return f"its Slurm job {id_} ended: {rows[-1].state if rows else 'no code, and accounting says nothing'}"

    def stop(self, patience: float) -> None:
        """Cancel the job."""
        rows = client.of_chain(client.queue(), self.experiment.name, Path(), mark=MARK)
        client.cancel([row.id for row in rows if row.comment.endswith(self.name)])


def cancel_runs(folder: Path) -> int:
    """Cancel every run of an experiment in the queue, record it as pending, and return their number. Jobs that other
    chains need continue. Raise LeaseConflict if a process runs the experiment: stop that one first."""
    with lease(folder / LEASE):
        record = read_record(folder)
        submitted = [run for run in record.runs if run.status == "running" and run.chain is not None]
        if not submitted:
            return 0
        spec, looks = read_spec(folder / SPEC_COPY), SlurmLooks()
        for run in submitted:
            submitted_run(folder, spec, run, looks).stop(0.0)
            record = record.with_run(replace(run, status="pending", started_at=None, chain=None))
            write_record(folder, record)
    return len(submitted)


def cancel_newest(name: str) -> int:
    """Cancel the runs of the newest experiment of this name; return their number, 0 without such an experiment."""
    try:
        folder = chosen(name)
    except InputError:
        return 0
    return cancel_runs(folder)
