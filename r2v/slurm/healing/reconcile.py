"""Reconciliation: a chain compared with the queue and its jobs' records, and every difference mended.

    reconcile("desk_noisy")              # idempotent; from any process, at any time
    from_job(root, "desk_noisy", "104")  # the same from inside a job; never raises

One squeue. In this order it records submitted but unrecorded jobs, answers failures, submits planned attempts, submits
or updates the sentinel, points pending jobs at the latest attempts, and cancels superfluous jobs. Decisions are written
before they are carried out, as planned attempts; those that Slurm did not accept stay planned. So every step may be
interrupted: the next reconciliation (by a dying job, its sentinel, a job that starts or ends, or a command) goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from r2v.errors import EnvironmentFault, LeaseConflict, R2VError
from r2v.log import logger
from r2v.slurm.chain import chain as chains
from r2v.slurm.chain import job_record
from r2v.slurm.chain.chain import WHOLE, Attempt, Chain, parse_comment, require_configuration
from r2v.slurm.client import client
from r2v.slurm.client.command import NoSlurm, SlurmRefused, pauses
from r2v.slurm.client.limits import exceeded
from r2v.slurm.client.messages import refusal_passes
from r2v.slurm.healing import shared_stages
from r2v.slurm.healing.classify import Evidence, Failure
from r2v.slurm.healing.comparison import Comparison, pending, waiting_for
from r2v.slurm.healing.heal import answer, examine
from r2v.slurm.healing.sentinels import idle_sentinels, watch

SENTINEL_SECONDS = 200.0
"""Seconds for which a sentinel retries: it has five minutes, and starts late in them."""


def reconcile(
    name: str, *, root: Path = Path(), ended: Collection[str] = (), awaited: str = "", wait: float = 0.0
) -> list[str]:
    """Bring a chain in line; returns a line for each action that failed for now.

    ended: jobs that have recorded their end, though the queue may list them. awaited: a job that has ended, so that a
    late answer about it is waited for; `WHOLE` if it is unknown which. wait: seconds to wait for the chain's lock.
    Raises LeaseConflict, InputError, and NoSlurm if squeue does not answer.
    """
    for owner in shared_stages.owners(chains.read(root, name)):
        _look_after(root, owner)
    with chains.lock(root, name, wait=wait):
        now = bring_in_line(root, chains.read(root, name), ended=ended, awaited=awaited)
    for waiter in shared_stages.waiters(root, name):
        if any(now.changed(job) for job, entry in waiter.jobs.items() if entry.owner == name and not entry.skipped):
            _look_after(root, waiter.name)
    return now.undone


def look_after_waiters(root: Path, name: str) -> None:
    """Bring in line every chain that waits for this one, after a person changed its jobs."""
    for waiter in shared_stages.waiters(root, name):
        _look_after(root, waiter.name)


def _look_after(root: Path, name: str) -> None:
    """Bring in line an owner or waiter of the present chain, unless another process is at it."""
    try:
        with chains.lock(root, name, wait=5.0):  # short: the holder reconciles it anyway
            chain = chains.read(root, name)
            require_configuration(root, chain)
            undone = bring_in_line(root, chain).undone
        for line in undone:
            logger.warning("reconcile incomplete, will retry: chain=%s reason=%s", name, line)
    except NoSlurm:
        raise
    except R2VError as error:  # another chain's damage must not stop this one
        logger.info("reconcile failed: chain=%s error=%s", name, error)


def bring_in_line(
    root: Path, chain: Chain, *, ended: Collection[str] = (), awaited: str = "", strict: bool = False
) -> Comparison:
    """Bring a chain in line under a lock that the caller holds. `strict`: stop at the first refusal (`refusal`)."""
    now = Comparison(root=root, chain=chain, rows={}, ended=frozenset(ended), awaited=awaited)
    if chain.cancelled:
        now.scope = frozenset(shared_stages.needed_by_others(root, chain))
    answered = _answer_self_reported(now)  # before squeue: decisions are recorded even if Slurm does not answer
    now.everybody = client.queue(ended=True)
    now.rows = {row.id: row for row in client.of_chain(now.everybody, chain.name, root)}
    now.listed = frozenset(now.rows)
    if now.scope is not None:
        needed = now.scope | ({WHOLE} if now.scope else set())
        idle = [row.id for row, mark in now.marked() if now.alive(row.id) and mark.job not in needed]
        _end(now, idle, "the chain was cancelled")
    _record_submitted(now)
    shared_stages.settle(now)
    _answer(now, [job for job in now.jobs if job not in answered])
    _submit(now, strict)
    if not now.refusal:
        watch(now)
    _retarget(now)
    _end(now, idle_sentinels(now), "they watch nothing")
    return now


def try_reconcile(root: Path, name: str, *, ended: Collection[str] = (), wait: float = 0.0) -> LeaseConflict | None:
    """Reconcile as far as possible now; returns the conflict if another process is at it. Errors are logged."""
    try:
        require_configuration(root, chains.read(root, name))
        for line in reconcile(name, root=root, ended=ended, wait=wait):
            logger.warning("reconcile incomplete, will retry: chain=%s reason=%s", name, line)
    except LeaseConflict as error:
        return error
    except R2VError as error:  # a stage must not fail because its chain cannot be reconciled
        logger.warning("reconcile failed: chain=%s error=%s", name, error)
    return None


def from_job(root: Path, name: str, id_: str, *, failed: bool = False) -> None:
    """Reconcile from inside a job of the chain, at its start or its end (`failed`: by its own record). It does not
    change the stage's outcome; the sentinel retries."""
    if name not in chains.names(root):
        return
    if conflict := try_reconcile(root, name, ended=[id_] if failed else [], wait=30.0 if failed else 5.0):
        logger.info("reconcile left to the lease holder: chain=%s reason=%s", name, conflict)


def by_sentinel(name: str, job: str = WHOLE, *, root: Path = Path()) -> int:
    """Reconcile as a sentinel until nothing is left undone, for at most `SENTINEL_SECONDS`; returns an exit code.
    `job` is the one that has ended; "": none is known to have."""
    retries = pauses(SENTINEL_SECONDS)
    while True:
        try:
            undone = reconcile(name, root=root, awaited=job, wait=SENTINEL_SECONDS)
        except EnvironmentFault as error:
            undone = [str(error)]
        if not undone:
            return 0
        if next(retries, None) is None:
            logger.warning("reconcile incomplete, will retry: chain=%s reason=%s", name, "; ".join(undone))
            return EnvironmentFault.exit_code


def surplus(root: Path, name: str, job: str, attempt: int, id_: str) -> bool:
    """True if a job that has just started is a duplicate: neither recorded in its chain nor its planned attempt. It
    catches submissions that were delivered twice or late; a planned one is recorded."""
    for _ in range(20):  # ten minutes of lock waits: a submitter of a large chain holds it for many sbatch calls
        chain = chains.find(root, name)
        entry = chain.jobs.get(job) if chain is not None else None
        if chain is None or entry is None or id_ in chain.slurm_ids:
            return False
        try:
            with chains.lock(root, name, wait=30.0):  # its submitter may be about to record it
                chain = chains.read(root, name)
                entry = chain.jobs[job]
                if id_ in chain.slurm_ids or entry.planned is None or entry.next_number != attempt:
                    return id_ not in chain.slurm_ids
                adopted = replace(entry.planned, id=id_, submitted_at=chains.now())
                chains.write(root, chain.with_attempt(job, adopted))
                return False
        except LeaseConflict:
            continue
    return False


def _answer_self_reported(now: Comparison) -> list[str]:
    """Answer the failures that jobs report themselves; returns those jobs."""
    answered = []
    for job in now.jobs:
        latest = now.chain.jobs[job].latest
        if latest is not None and latest.id in now.ended and latest.failure is None:
            evidence, failure = examine(now.root, now.chain, job, latest, self_reported=True)
            if failure is not None and _answered(now, job, latest, evidence, failure):
                answered.append(job)
    return answered


def _answered(now: Comparison, job: str, latest: Attempt, evidence: Evidence, failure: Failure) -> bool:
    """Record the decision on a failure; False if it cannot be made now: the next reconciliation tries again."""
    try:
        now.write(answer(now.root, now.chain, job, latest, evidence, failure))
    except EnvironmentFault as error:
        now.undone.append(f"nothing is decided about {job}, {failure.kind}: {error}")
        now.unknown_ends.add(job)
        return False
    return True


def _record_submitted(now: Comparison) -> None:
    """Record attempts that were submitted but not recorded; cancel duplicates."""
    duplicates: list[str] = []
    for job in now.jobs:
        recorded = now.chain.slurm_ids
        unrecorded = [row for row, mark in now.marked(job) if not mark.sentinel and row.id not in recorded]
        # Of several, keep the one that runs, else the oldest.
        unrecorded.sort(key=lambda row: (row.state == "PENDING", client.job_number(row.id)))
        for row in unrecorded:
            entry, mark = now.chain.jobs[job], parse_comment(row.comment)
            began = (job_record.record_folder(now.root, now.chain.name, row.id) / "start.json").exists()
            ours = mark is not None and (mark.sha, mark.attempt) == (now.chain.config_sha, entry.next_number)
            if entry.planned is not None and ours and (now.alive(row.id) or began):
                logger.info("submission found in the queue: chain=%s stage=%s job=%s", now.chain.name, job, row.id)
                attempt = replace(entry.planned, id=row.id, submitted_at=entry.planned.submitted_at or chains.now())
                now.write(now.chain.with_attempt(job, attempt))
            elif now.alive(row.id):
                duplicates.append(row.id)
    _end(now, duplicates, "submitted twice")


def _answer(now: Comparison, jobs: Sequence[str]) -> None:
    """Decide on every attempt that has failed and has no answer yet."""
    for job in jobs:
        entry = now.chain.jobs[job]
        latest = entry.latest
        answered = latest is None or entry.planned or entry.skipped or entry.owner or latest.failure
        if latest is None or answered or now.alive(latest.id):
            continue
        if now.standing(job) == "done":
            continue
        waited = now.awaited in (job, WHOLE)
        try:
            evidence, failure = examine(now.root, now.chain, job, latest, patient=waited)
        except EnvironmentFault as error:
            now.undone.append(f"how {job} ended is not known: {error}")
            now.unknown_ends.add(job)
            continue
        if failure is None and waited and now.standing(job) != "done":
            failure = Failure(kind="unknown", line="it ended, and neither its own record nor Slurm says how")
        if failure is None:
            now.unknown_ends.add(job)
            continue
        if failure.kind == "dependency":  # Slurm killed it with its parent: resubmit it once the parent is back
            if {now.standing(need) for need in entry.needs} <= {"active", "planned", "done"}:
                again = replace(latest, id="", sentinel=None, reason="dependency", counted=False)
                now.write(now.chain.with_job(job, planned=again))
                logger.info(
                    "killed with its parent, resubmitting: chain=%s stage=%s job=%s", now.chain.name, job, latest.id
                )
            continue
        _answered(now, job, latest, evidence, failure)


def _submit(now: Comparison, strict: bool) -> None:
    """Submit planned attempts in order, each depending on its needs, and a sentinel after the first."""
    from r2v.slurm.client.submit import submit_stage  # loads submitit, which most reconciliations do not need

    for job in now.jobs:
        planned = now.chain.jobs[job].planned
        waits = now.waits_for(job) if planned is not None else None
        if planned is None or waits is None:
            continue
        try:
            id_ = submit_stage(now.root, now.chain, job, planned, waits)
        except EnvironmentFault as error:
            passes, why = not isinstance(error, SlurmRefused) or refusal_passes(str(error)), str(error)
            if passes and isinstance(error, SlurmRefused):
                broken = exceeded(planned.resources)
                passes, why = broken is None, f"{error}: {broken}" if broken else why
            if not passes:
                _give_up(now, job, why, everything=strict)
            if passes or strict:
                now.undone.append(f"{job} was refused ({error})")
                now.refusal = now.undone[-1] if strict else ""
                return
            continue
        now.write(now.chain.with_attempt(job, replace(planned, id=id_, submitted_at=chains.now())))
        depends = f"afterok:{':'.join(waits)}" if waits else ""
        now.rows[id_] = pending(id_, job, now.chain, depends, own=planned.resources.get("comment", ""))
        now.submitted.append(job)
        logger.info("stage submitted: chain=%s stage=%s job=%s", now.chain.name, job, id_)
        # The sentinel follows the first job, so that a killed submitter leaves none unwatched for long; later jobs are
        # added to its dependency in one call.
        if len(now.submitted) == 1 and not watch(now) and strict:
            now.refusal = now.undone[-1]
            return


def _give_up(now: Comparison, job: str, reason: str, *, everything: bool) -> None:
    """Drop a planned attempt that Slurm refused for good, and record the reason at the failure that it answered."""
    attempts = now.chain.jobs[job].attempts
    if attempts and (failure := attempts[-1].failure) is not None:
        failed = replace(failure, action=f"could not be submitted again: {reason}")
        attempts = (*attempts[:-1], replace(attempts[-1], failure=failed))
    chain = now.chain.with_job(job, planned=None, attempts=attempts)
    for other in chain.jobs if everything else ():
        chain = chain.with_job(other, planned=None)
    now.write(chain)


def _retarget(now: Comparison) -> None:
    """Make every pending job depend on its needs' latest attempts; one with a failed, unretried need stays blocked."""
    for job in now.jobs:
        entry = now.chain.jobs[job]
        row = now.rows.get(entry.latest.id) if entry.latest else None
        if entry.latest is None or row is None or row.state != "PENDING" or row.id in now.ended or entry.planned:
            continue
        waits, own = now.waits_for(job), entry.latest.resources.get("comment", "")
        mark = now.chain.comment(job, attempt=len(entry.attempts), own=own)
        if waits is None or (waiting_for(row) == set(waits) and row.comment == mark):
            continue
        try:
            depends = f"afterok:{':'.join(waits)}" if waits else ""
            if client.update(row.id, dependency=depends, comment=mark):
                logger.info(
                    "dependency updated: chain=%s stage=%s job=%s dependency=%s",
                    *(now.chain.name, job, row.id, depends or "none"),
                )
        except EnvironmentFault as error:
            now.undone.append(f"{job} (job {row.id}) does not wait for what it should: {error}")
            return


def _end(now: Comparison, ids: Sequence[str], why: str) -> None:
    if not ids:
        return
    logger.info("jobs cancelled: chain=%s jobs=%s reason=%s", now.chain.name, ",".join(ids), why)
    try:
        client.cancel(ids)
    except EnvironmentFault as error:
        now.undone.append(f"jobs {' '.join(ids)} are one too many: {error}")
