"""Reconciliation: what a chain should be is compared with what is, and what differs is mended.

    reconcile("desk_noisy")              # at any time, by anybody, any number of times
    from_job(root, "desk_noisy", "104")  # the same from inside a job, which nothing of it may end

It asks Slurm once what is in the queue, reads the chain and the records of its jobs, and in this order writes down what
was submitted and not written, answers failures, submits what is planned, has one sentinel watch all of it, points what
waits at the latest attempts, and takes away what nobody waits for. What is decided is written before it is done, as a
planned attempt; what Slurm did not take stays planned. So each step may be cut short at any point, and whoever comes
next (the dying job, its sentinel, any job that starts or ends, any command of R2V) goes on with it.
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
"""How long a sentinel goes on where Slurm does not take what is to be done."""


def reconcile(
    name: str, *, root: Path = Path(), ended: Collection[str] = (), awaited: str = "", wait: float = 0.0
) -> list[str]:
    """Bring a chain in line; returns what could not be done now, a line each.

    ended: jobs that have written how they ended, whatever the queue says of them. awaited: the job whose end is known
    to have come, so that a late answer about it is waited for; `WHOLE` where it is not known whose. wait: seconds to
    wait for the chain's lock. Raises LeaseConflict, InputError, and NoSlurm where nobody says what is in the queue.
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
    """Bring in line every chain that waits for this one, whose jobs a person has changed."""
    for waiter in shared_stages.waiters(root, name):
        _look_after(root, waiter.name)


def _look_after(root: Path, name: str) -> None:
    """Bring in line a chain that makes something for ours, or waits for it. Where somebody else is at it, they do."""
    try:
        with chains.lock(root, name, wait=5.0):
            chain = chains.read(root, name)
            require_configuration(root, chain)
            undone = bring_in_line(root, chain).undone
        for line in undone:
            logger.warning("%s: will retry: %s", name, line)
    except NoSlurm:
        raise
    except R2VError as error:
        logger.info("%s: reconcile failed: %s", name, error)


def bring_in_line(
    root: Path, chain: Chain, *, ended: Collection[str] = (), awaited: str = "", strict: bool = False
) -> Comparison:
    """The same for who holds the lock already. `strict`: at the first refusal the rest is left (`refusal`)."""
    now = Comparison(root=root, chain=chain, rows={}, ended=frozenset(ended), awaited=awaited)
    if chain.cancelled:
        now.scope = frozenset(shared_stages.needed_by_others(root, chain))
    told = _told_ends(now)  # without Slurm: what is decided outlives a controller that does not answer
    now.everybody = client.queue(ended=True)
    now.rows = {row.id: row for row in client.of_chain(now.everybody, chain.name, root)}
    now.asked = frozenset(now.rows)
    if now.scope is not None:
        kept = now.scope | ({WHOLE} if now.scope else set())
        idle = [row.id for row, mark in now.marked() if now.alive(row.id) and mark.job not in kept]
        _end(now, idle, "the chain was cancelled")
    _write_down(now)
    shared_stages.settle(now)
    _answer(now, [job for job in now.jobs if job not in told])
    _submit(now, strict)
    if not now.refusal:
        watch(now)
    _retarget(now)
    _end(now, idle_sentinels(now), "they watch nothing")
    return now


def try_reconcile(root: Path, name: str, *, ended: Collection[str] = (), wait: float = 0.0) -> LeaseConflict | None:
    """Reconcile as far as that goes now; returns the conflict where another process is at it. Whatever goes wrong is a
    line."""
    try:
        require_configuration(root, chains.read(root, name))
        for line in reconcile(name, root=root, ended=ended, wait=wait):
            logger.warning("%s: will retry: %s", name, line)
    except LeaseConflict as error:
        return error
    except R2VError as error:
        logger.warning("%s: reconcile failed: %s", name, error)
    return None


def from_job(root: Path, name: str, id_: str, *, failed: bool = False) -> None:
    """Reconcile from inside a job of the chain, at its start or its end (`failed`: as its own record says). The stage's
    end is not changed by it, and the sentinel comes next."""
    if name not in chains.names(root):
        return
    if conflict := try_reconcile(root, name, ended=[id_] if failed else [], wait=30.0 if failed else 5.0):
        logger.info("%s: %s", name, conflict)


def by_sentinel(name: str, job: str = WHOLE, *, root: Path = Path()) -> int:
    """Reconcile as a sentinel, until all is done that is to be, a few minutes at most; returns an exit code.
    `job` is the one that has ended; "": nobody says that any has."""
    waiting = pauses(SENTINEL_SECONDS)
    while True:
        try:
            undone = reconcile(name, root=root, awaited=job, wait=SENTINEL_SECONDS)
        except EnvironmentFault as error:
            undone = [str(error)]
        if not undone:
            return 0
        if next(waiting, None) is None:
            logger.warning("%s: will retry: %s", name, "; ".join(undone))
            return EnvironmentFault.exit_code


def surplus(root: Path, name: str, job: str, attempt: int, id_: str) -> bool:
    """True if a job that has just started as this attempt at a stage is one too many: it is not in its chain, which has
    no such attempt planned. A submission that was delivered twice, or after it was given up, ends here."""
    for _ in range(20):
        chain = chains.find(root, name)
        entry = chain.jobs.get(job) if chain is not None else None
        if chain is None or entry is None or id_ in chain.slurm_ids:
            return False
        try:
            with chains.lock(root, name, wait=30.0):  # its submitter may be about to write it down
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


def _told_ends(now: Comparison) -> list[str]:
    """Answer the failures that the jobs tell themselves; returns which."""
    told = []
    for job in now.jobs:
        latest = now.chain.jobs[job].latest
        if latest is not None and latest.id in now.ended and latest.failure is None:
            evidence, failure = examine(now.root, now.chain, job, latest, told=True)
            if failure is not None and _answered(now, job, latest, evidence, failure):
                told.append(job)
    return told


def _answered(now: Comparison, job: str, latest: Attempt, evidence: Evidence, failure: Failure) -> bool:
    """Write down what is decided about a failure; False where that cannot be decided now, and the next look does."""
    try:
        now.write(answer(now.root, now.chain, job, latest, evidence, failure))
    except EnvironmentFault as error:
        now.undone.append(f"nothing is decided about {job}, {failure.kind}: {error}")
        now.untold.add(job)
        return False
    return True


def _write_down(now: Comparison) -> None:
    """Make attempts of the jobs that were submitted and not written down; end those that are one too many."""
    too_many: list[str] = []
    for job in now.jobs:
        known = now.chain.slurm_ids
        strangers = [row for row, mark in now.marked(job) if not mark.sentinel and row.id not in known]
        strangers.sort(key=lambda row: (row.state == "PENDING", client.job_number(row.id)))
        for row in strangers:
            entry, mark = now.chain.jobs[job], parse_comment(row.comment)
            began = (job_record.record_folder(now.root, now.chain.name, row.id) / "start.json").exists()
            ours = mark is not None and (mark.sha, mark.attempt) == (now.chain.config_sha, entry.next_number)
            if entry.planned is not None and ours and (now.alive(row.id) or began):
                logger.info("%s: %s was submitted as job %s", now.chain.name, job, row.id)
                attempt = replace(entry.planned, id=row.id, submitted_at=entry.planned.submitted_at or chains.now())
                now.write(now.chain.with_attempt(job, attempt))
            elif now.alive(row.id):
                too_many.append(row.id)
    _end(now, too_many, "submitted twice")


def _answer(now: Comparison, jobs: Sequence[str]) -> None:
    """Decide about every attempt that has ended without success and has no answer yet."""
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
            now.untold.add(job)
            continue
        if failure is None and waited and now.standing(job) != "done":
            failure = Failure(kind="unknown", line="it ended, and neither its own record nor Slurm says how")
        if failure is None:
            now.untold.add(job)
            continue
        if failure.kind == "dependency":  # killed by Slurm as it waited: it comes back with what it waits for
            if {now.standing(need) for need in entry.needs} <= {"active", "planned", "done"}:
                again = replace(latest, id="", sentinel=None, reason="dependency", counted=False)
                now.write(now.chain.with_job(job, planned=again))
                logger.info("%s: %s (job %s) was killed as it waited, and comes back", now.chain.name, job, latest.id)
            continue
        _answered(now, job, latest, evidence, failure)


def _submit(now: Comparison, strict: bool) -> None:
    """Submit what is planned, in order, behind what it needs, and a sentinel behind the first."""
    from r2v.slurm.client.submit import submit_stage  # with submitit, which a look alone does not need

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
        logger.info("%s: %s was submitted as job %s", now.chain.name, job, id_)
        if len(now.submitted) == 1 and not watch(now) and strict:  # the rest is added to what it watches, in one call
            now.refusal = now.undone[-1]
            return


def _give_up(now: Comparison, job: str, reason: str, *, everything: bool) -> None:
    """A refusal that does not pass ends what was planned; it stands beside the attempt that it was to answer."""
    attempts = now.chain.jobs[job].attempts
    if attempts and (failure := attempts[-1].failure) is not None:
        failed = replace(failure, action=f"could not be submitted again: {reason}")
        attempts = (*attempts[:-1], replace(attempts[-1], failure=failed))
    chain = now.chain.with_job(job, planned=None, attempts=attempts)
    for other in chain.jobs if everything else ():
        chain = chain.with_job(other, planned=None)
    now.write(chain)


def _retarget(now: Comparison) -> None:
    """Let every waiting job wait for the latest attempts of what it needs. One of whose needs has failed and is not
    made again stays as it is: blocked."""
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
                    "%s: %s keeps its job %s and waits for %s", now.chain.name, job, row.id, depends or "nothing"
                )
        except EnvironmentFault as error:
            now.undone.append(f"{job} (job {row.id}) does not wait for what it should: {error}")
            return


def _end(now: Comparison, ids: Sequence[str], why: str) -> None:
    if not ids:
        return
    logger.info("%s: jobs %s end: %s", now.chain.name, " ".join(ids), why)
    try:
        client.cancel(ids)
    except EnvironmentFault as error:
        now.undone.append(f"jobs {' '.join(ids)} are one too many: {error}")
