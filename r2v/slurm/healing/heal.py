"""What a sentinel does when its stage has failed: find out why, and make it good where that is possible.

    r2v heal desk_noisy preference

Under the chain's lease it decides (r2v.slurm.healing.retry_policy), submits the stage again with the change that its
class of
failure asks for, and points every waiting job at the new one: they keep their ids and their place in the queue.
It may be run at any time, and any number of times: a job that runs, waits or is done is left alone.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from r2v.errors import EnvironmentFault, R2VError
from r2v.log import logger
from r2v.slurm import chain as chains
from r2v.slurm import client
from r2v.slurm.chain import Attempt, Chain, Failed
from r2v.slurm.healing.classify import ALIVE, Evidence, Failure, classify
from r2v.slurm.healing.retry_policy import Again, decide
from r2v.slurm.submit import adopt, finished_well, in_queue, retarget, submit
from r2v.slurm.submit_missing import find, sentinels_of

SETTLE = 12.0
"""Seconds within which a job that has just ended is known as ended, to the controller and to accounting."""
TAIL = 64 << 10
"""Bytes of a log's end that are read for words."""
_DOUBTFUL = ("killed", "code", "unknown", "cancelled", "no_log")


def heal(name: str, job: str, *, root: Path = Path()) -> int:
    """Deal with the failure of a job's latest attempt; returns an exit code. Raises Held, InputError."""
    chain = chains.read(root, name)
    latest = chain.jobs[job].latest
    if latest is None:
        logger.info("r2v heal: %s of %s was never submitted", job, name)
        return 0
    told, failure = examine(root, chain, job, latest)
    if failure is None and latest.id not in in_queue(chain) and not finished_well(root, chain, job):
        failure = Failure(kind="unknown", line="it ended without a word, of its own or of Slurm's")
    with chains.held(root, name, wait=200.0):
        chain = chains.read(root, name)
        now = chain.jobs[job].latest
        if chain.cancelled:
            logger.info("r2v heal: nothing is done, %s was cancelled at %s", name, chain.cancelled)
        elif failure is not None and now is not None and now.id == latest.id and now.failure is None:
            return _treat(root, chain, job, latest, told, failure)
        else:
            logger.info("r2v heal: %s of %s (job %s) needs nothing", job, name, latest.id)
            if now is not None and now.id in in_queue(chain):  # a sentinel may have been killed halfway
                _bring_along(root, chain, job)
    return 0


def examine(root: Path, chain: Chain, job: str, attempt: Attempt) -> tuple[Evidence, Failure | None]:
    """All that can be known of an attempt, and what it amounts to. Waits until Slurm has made up its mind, and for
    accounting only where nobody else can tell."""
    deadline = time.monotonic() + SETTLE
    while (shown := client.show(attempt.id)).get("JobState") in ALIVE and time.monotonic() < deadline:
        if shown["JobState"] in ("PENDING", "RUNNING") and os.environ.get("SLURM_JOB_ID") is None:
            break
        time.sleep(0.3)
    told = evidence(root, chain, job, attempt, shown)
    failure = classify(told)
    while (failure is None and not shown or failure and failure.kind in _DOUBTFUL) and time.monotonic() < deadline:
        accounting = client.accounting([attempt.id])
        rows = accounting.jobs.get(attempt.id, [])
        told = replace(told, row=rows[-1] if rows else None)
        failure = classify(told)
        if accounting.down or rows and rows[-1].state not in ALIVE:
            break
        time.sleep(0.5)
    return told, failure


def evidence(root: Path, chain: Chain, job: str, attempt: Attempt, shown: dict[str, str]) -> Evidence:
    """What the attempt's own records, its log and the controller say; accounting aside."""
    record = chains.record(root, chain.name, attempt.id)
    restart = (record.start or {}).get("restart", 0)
    exit_ = record.exit if record.exit and record.exit.get("restart", 0) == restart else None
    ran = record.start is not None or shown.get("NodeList", "") not in ("", "(null)")
    return Evidence(exit=exit_, error=record.error, shown=shown, text=_log(root, chain, job, attempt), started=ran)


def _log(root: Path, chain: Chain, job: str, attempt: Attempt) -> str:
    try:
        with (root / "logs" / f"{job}_{chain.name}_{attempt.id}.out").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _treat(root: Path, chain: Chain, job: str, latest: Attempt, told: Evidence, failure: Failure) -> int:
    answer = decide(root, chain, job, told, failure)
    if isinstance(answer, Again):
        try:
            chain = _again(root, chain, job, answer, failure)
        except EnvironmentFault as error:
            _note(root, chain, job, latest, failure, f"could not be submitted again: {error}")
            return error.exit_code
        now = chain.jobs[job].latest
        assert now is not None
        chain = _note(root, chain, job, latest, failure, f"submitted again as {now.id}, {answer.why}")
        _bring_along(root, chain, job)
        return 0
    waiting = ", ".join(chain.after({job}))
    _note(root, chain, job, latest, failure, f"not tried again: {answer}" + (f"; held: {waiting}" if waiting else ""))
    return 0


def _again(root: Path, chain: Chain, job: str, answer: Again, failure: Failure) -> Chain:
    """Submit a job with what was decided, unless an earlier sentinel did and had no time to write it down."""
    rows = client.queue(chain.name, root)
    row = find(rows, chain, job)
    if row is None:
        return submit(
            root, chain, job, answer.resources, overrides=answer.overrides, reason=failure.kind, counted=answer.counted
        )
    found = Attempt(
        id=row.id,
        resources=answer.resources,
        overrides=answer.overrides,
        reason=failure.kind,
        counted=answer.counted,
        submitted_at=row.submitted,
    )
    return adopt(root, chain, job, found, sentinels_of(rows, job))


def _note(root: Path, chain: Chain, job: str, latest: Attempt, failure: Failure, action: str) -> Chain:
    """Write beside an attempt why it failed and what came of it."""
    logger.info("r2v heal: %s of %s (job %s) failed, %s: %s", job, chain.name, latest.id, failure.kind, failure.line)
    logger.info("r2v heal: %s", action)
    failed = Failed(kind=failure.kind, line=failure.line, action=action, at=chains.now())
    attempts = tuple(replace(one, failure=failed) if one.id == latest.id else one for one in chain.jobs[job].attempts)
    chain = chain.with_job(job, attempts=attempts)
    chains.write(root, chain)
    return chain


def _bring_along(root: Path, chain: Chain, job: str) -> None:
    """Point the jobs behind at the new attempt. Those that the site killed with their parent are submitted again,
    which costs them their id and their place in the queue."""
    behind = chain.after({job})
    kept = retarget(root, chain, behind)
    for name in kept:
        logger.info("r2v heal: %s keeps its job %s and waits for the new one", name, chain.jobs[name].latest.id)  # type: ignore[union-attr]
    for name in behind:
        latest = chain.jobs[name].latest
        if latest is None or latest.id in in_queue(chain) or not _killed_waiting(root, chain, name, latest):
            continue
        try:
            chain = submit(
                root, chain, name, latest.resources, overrides=latest.overrides, reason="dependency", counted=False
            )
        except R2VError as error:
            logger.warning("r2v heal: %s: %s", name, error)
            return
        logger.info(
            "r2v heal: %s: this site kills jobs whose parent has failed (kill_invalid_depend); job %s comes "
            "back as %s, at the end of the queue",
            name,
            latest.id,
            chain.jobs[name].latest.id,  # type: ignore[union-attr]
        )
        retarget(root, chain, chain.after({name}))


def _killed_waiting(root: Path, chain: Chain, job: str, attempt: Attempt) -> bool:
    """Whether Slurm itself cancelled an attempt before it began; one that a person cancelled stays so."""
    shown = client.show(attempt.id)
    told = evidence(root, chain, job, attempt, shown)
    if not shown:
        rows = client.accounting([attempt.id]).jobs.get(attempt.id, [])
        told = replace(told, row=rows[-1] if rows else None)
    failure = classify(told)
    return failure is not None and failure.kind == "dependency"
