"""Slurm runs: runs of an experiment that are jobs, or chains of jobs, in the queue.

    looks = SlurmLooks()
    active = submitted_run(folder, spec, run, looks)     # a chain where points run a stage, else one job
    active.go()                                          # submits it, or finds that it is submitted
    while (end := active.look()) is None: ...

A run over a stage is a chain of its own, named by its prefix, through the submission that `r2v run_all` uses: what it
shares with another chain of the checkout is one job for which both wait, what fails is healed, and its figures are
taken from what it has published. A run of a command, or a simulation, is one job, known by its comment; it takes its
folder by a symbolic link that holds its id, so that a second job of the same run would end at once. Nothing of this
depends on the process that submitted it: killed, and started again, it finds its runs in the queue.
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
from r2v.experiments.specification.resources import job_resources
from r2v.experiments.specification.spec import ExperimentSpec, read_spec
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
"""What the comment of a run's job begins with: r2v-point:<experiment>/<run>/<attempt>."""
TAKEN_BY = "slurm_job"
"""The link in a run's folder that holds the id of the job that runs it."""
_SURE = 2
"""Looks that must agree before a run that left no code is given up: file systems and queues lag."""

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
    """What Slurm says of an experiment's runs, asked once for all of them and not more often than `every` seconds."""

    every: float = 10.0
    chains: set[str] = field(default_factory=set)
    """The chains that are asked about."""
    number: int = 0
    rows: Mapping[str, Queued] = field(default_factory=dict)
    statuses: Mapping[str, ChainStatus] = field(default_factory=dict)
    codes: Mapping[str, int] = field(default_factory=dict)
    """By chain: the exit code that its last failed job wrote of itself."""
    _at: float = float("-inf")

    def since(self, number: int) -> bool:
        """Whether there is a look that came after this one; asks, where it is time. Where nobody answers there is
        none."""
        if time.monotonic() - self._at >= self.every:
            self._ask()
            self._at = time.monotonic()
        return self.number > number

    def _ask(self) -> None:
        from r2v.slurm.chain import chain as chains
        from r2v.slurm.views.chain_status import statuses
        from r2v.slurm.views.sources import gather

        known = [name for name in sorted(self.chains) if name in chains.names()]
        sources = gather(known)
        if sources.slurm.queue is None:
            logger.warning("%s; asked again", sources.slurm.queue_down)
            return
        self.rows = sources.slurm.queue
        self.statuses = {one.chain.name: one for one in statuses(sources)}
        exits = {name: [one.exit for one in sources.files[name].records.values() if one.exit] for name in known}
        self.codes = {
            name: next((one["rc"] for one in reversed(found) if one.get("rc")), 1) for name, found in exits.items()
        }
        self.number += 1


def chain_name(folder: Path, run: str) -> str:
    """The prefix, and so the chain, of a run over a stage."""
    return f"{folder.name}-{run}"


def text_of(folder: Path, spec: ExperimentSpec, run: RunRecord, text: str) -> str:
    """The configuration that a run in the queue reads: its own, under a prefix of its own where it is a chain."""
    if spec.stage is None:
        return text
    from r2v.config import to_yaml
    from r2v.config.yaml_text import read
    from r2v.experiments.point import config_of

    return to_yaml(replace(config_of(read(text, run.run).mapping()), prefix=chain_name(folder, run.run)))


def submitted_run(
    folder: Path, spec: ExperimentSpec, run: RunRecord, looks: SlurmLooks, flags: Sequence[str] = ()
) -> ChainRun | JobRun:
    """A run that is about to be submitted, or was (`run.chain` says as what)."""
    if spec.stage is not None:
        name = run.chain or chain_name(folder, run.run)
        return ChainRun(run=run, name=name, stage=spec.stage, experiment=folder, looks=looks)
    attempt = 1 + len(list(Path(run.run_dir).parent.glob(f"{run.run}.attempt*")))
    mark = run.chain or f"{MARK}:{folder.name}/{run.run}/{attempt}"
    adopted = run.chain is not None
    return JobRun(run=run, name=mark, spec=spec, experiment=folder, looks=looks, flags=flags, adopted=adopted)


def require_accepted(spec: ExperimentSpec) -> None:
    """Raises NoSlurm where there is none here, UsageError where it would not take a run's job as it stands."""
    from r2v.slurm.site import script_text
    from r2v.slurm.submit_missing import check_request

    require()
    script_text.report()
    if spec.stage is not None:
        return  # each chain asks about each of its jobs
    answer = check_request(job_resources(spec.resources))
    if not answer.ok:
        raise UsageError(f"{spec.path}: this cluster will not give what a run asks for: {answer.line}; see resources")


@contextlib.contextmanager
def _in_group(experiment: Path) -> Iterator[None]:
    """Within the block, what is submitted shows itself to trackers as the experiment's, whatever heals it later."""
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
        """Submit what of the chain is neither made nor in the queue. Raises UsageError where Slurm would not take it;
        a queue that is full or silent is met again at the next look."""
        from r2v.experiments.point import jobs_of
        from r2v.memory.profile_of_model import configured
        from r2v.pipeline.graph import selection, upstream
        from r2v.slurm import run_all

        config, told = configured(self.run.config_path), io.StringIO()
        rows = selection(config)[0]
        wanted = upstream(jobs_of(self.stage, config), rows)
        without = [row.name for row in rows if row.name not in wanted]
        try:
            with contextlib.redirect_stdout(told), _in_group(self.experiment):
                run_all.submit(config=self.run.config_path, without=without, allow_env=allowed())
        except EnvironmentFault as error:
            logger.warning("%s: %s", self.run.run, error)
            self._broken = -1
        write_text(Path(self.run.run_dir) / OUTPUT, told.getvalue())

    def look(self) -> RunEnd | None:
        """How the chain ended: whole, or broken for good; None while it is neither."""
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

        self._mend()  # what other chains have made is published here by whoever looks
        config = load(Path(self.run.config_path))
        until = jobs_of(self.stage, config)
        wanted = upstream(until, selection(config)[0])
        try:
            made = {row.name: published(config, row.name) for row in JOBS if row.name in wanted}
        except InputError as error:
            self._broken += 1
            return None if self._broken < _SURE else RunEnd(return_code=error.exit_code, line=str(error))
        leave_figures(config, Path(self.run.run_dir), until, made)
        return RunEnd(return_code=0)

    def _mend(self) -> None:
        from r2v.slurm.healing.reconcile import reconcile

        try:
            for line in reconcile(self.name, wait=5.0):
                logger.warning("%s: left to the next look: %s", self.name, line)
        except R2VError as error:
            logger.warning("%s: %s", self.name, error)

    def _given_up(self, status: ChainStatus | None) -> RunEnd:
        bad = [job for job in status.jobs if job.state in ("failed", "cancelled", "not submitted")] if status else []
        line = "; ".join(f"{job.job} {job.state}: {job.words}" for job in bad) or "it was never submitted"
        self.stop(0.0)
        return RunEnd(return_code=self.looks.codes.get(self.name, 1), line=f"{line}; r2v explain {self.name}")

    def stop(self, patience: float) -> None:
        """Cancel what of the chain is in the queue and nobody else waits for."""
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
    """Its comment."""
    spec: ExperimentSpec
    experiment: Path
    looks: SlurmLooks
    flags: Sequence[str] = ()
    adopted: bool = False
    """Whether another process has submitted it, or was about to."""
    _seen: int = 0
    _gone: int = 0

    def __post_init__(self) -> None:
        self._seen = self.looks.number

    def go(self) -> None:
        """Submit the job; one that another process was to submit is only looked for."""
        if self.adopted:
            return
        folder, asked = Path(self.run.run_dir), job_resources(self.spec.resources)
        own = asked.directives.get("comment", "")
        directives = {name: value for name, value in asked.directives.items() if name != "comment"}
        arguments = [
            *replace(asked, directives=directives).sbatch_args(),
            *([] if "no-requeue" in directives else ["--requeue"]),
            f"--job-name={self.run.run}_{self.experiment.name}",
            f"--comment={f'{own} {self.name}'.lstrip()}",
            f"--output={(folder / OUTPUT).resolve()}",
            "--open-mode=append",
            f"--chdir={Path().resolve()}",
        ]
        write_text(folder / OUTPUT, "")
        id_ = client.sbatch(arguments, self._script(folder.resolve()))
        logger.info("%-12s job %s", self.run.run, id_)

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
        """How the job ended: as the run wrote it, or as Slurm says; None while it is in the queue."""
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
        """What Slurm says of a job that left no code."""
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
    """Cancel every run of an experiment that is in the queue, and note it as pending; how many there were. What other
    chains wait for goes on. Raises LeaseConflict where a process works on the experiment: stop that one first."""
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
    """The same of the newest experiment of a name; 0 where there is none."""
    try:
        folder = chosen(name)
    except InputError:
        return 0
    return cancel_runs(folder)
