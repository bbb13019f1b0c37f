"""Healing: what a sentinel does when its stage has failed. It classifies the failure and resubmits where that helps.

    r2v heal desk_noisy preference

Under the chain's lock it decides (r2v.slurm.healing.retry_policy), submits the stage again with the change that its
kind of failure asks for, and points every waiting job at the new one: they keep their ids and their place in the
queue. It may be run at any time, and any number of times: a job that runs, waits or is done is left alone.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from r2v.errors import EnvironmentFault, FailureKind, R2VError
from r2v.log import logger
from r2v.slurm import chain as chains
from r2v.slurm import client
from r2v.slurm.bad_nodes import remember
from r2v.slurm.chain import Attempt, AttemptFailure, Chain
from r2v.slurm.healing.classify import ALIVE, Evidence, Failure, classify, nodes
from r2v.slurm.healing.retry_policy import Resubmit, decide
from r2v.slurm.submit import adopt, finished_well, in_queue, retarget, submit
from r2v.slurm.submit_missing import find, sentinels_of
from r2v.storage.paths import LOGS

SETTLE = 12.0
"""Seconds within which a job that has just ended is known as ended, to the controller and to accounting."""
LOG_TAIL = 64 << 10
"""Bytes of a log's end that are searched for known errors."""
_DOUBTFUL: tuple[FailureKind, ...] = ("killed", "bug", "unknown", "cancelled", "no_log")
"""Kinds that accounting, which comes late, may yet turn into another (host_oom, above all)."""


def heal(name: str, job: str, *, root: Path = Path()) -> int:
    """Answer the failure of a job's latest attempt; returns an exit code. Raises LeaseConflict, InputError."""
    chain = chains.read(root, name)
    latest = chain.jobs[job].latest
    if latest is None:
        logger.info("r2v heal: %s of %s was never submitted", job, name)
        return 0
    evidence, failure = examine(root, chain, job, latest)
    if failure is None and latest.id not in in_queue(chain) and not finished_well(root, chain, job):
        failure = Failure(kind="unknown", line="it ended, and neither its own record nor Slurm says how")
    # Examined without the lock, which may take seconds; what it found is acted on only if nobody else has meanwhile.
    with chains.lock(root, name, wait=200.0):
        chain = chains.read(root, name)
        now = chain.jobs[job].latest
        if chain.cancelled:
            logger.info("r2v heal: nothing is done, %s was cancelled at %s", name, chain.cancelled)
        elif failure is not None and now is not None and now.id == latest.id and now.failure is None:
            return _answer(root, chain, job, latest, evidence, failure)
        else:
            logger.info("r2v heal: %s of %s (job %s) needs nothing", job, name, latest.id)
            if now is not None and now.id in in_queue(chain):  # a sentinel may have been killed halfway
                _retarget_downstream(root, chain, job)
    return 0


def examine(root: Path, chain: Chain, job: str, attempt: Attempt) -> tuple[Evidence, Failure | None]:
    """All that can be known of an attempt, and its failure. Waits until Slurm knows the job as ended, and for
    accounting only where nothing else can tell."""
    deadline = time.monotonic() + SETTLE
    while (scontrol := client.show(attempt.id)).get("JobState") in ALIVE and time.monotonic() < deadline:
        if scontrol["JobState"] in ("PENDING", "RUNNING") and os.environ.get("SLURM_JOB_ID") is None:
            break
        time.sleep(0.3)
    evidence = collect_evidence(root, chain, job, attempt, scontrol)
    failure = classify(evidence)
    while (failure is None and not scontrol or failure and failure.kind in _DOUBTFUL) and time.monotonic() < deadline:
        accounting = client.accounting([attempt.id])
        rows = accounting.jobs.get(attempt.id, [])
        evidence = replace(evidence, row=rows[-1] if rows else None)
        failure = classify(evidence)
        if accounting.down or rows and rows[-1].state not in ALIVE:
            break
        time.sleep(0.5)
    return evidence, failure


def collect_evidence(root: Path, chain: Chain, job: str, attempt: Attempt, scontrol: dict[str, str]) -> Evidence:
    """What the attempt's own records, its log and the controller say; accounting aside."""
    record = chains.record(root, chain.name, attempt.id)
    restart = (record.start or {}).get("restart", 0)
    exit_ = record.exit if record.exit and record.exit.get("restart", 0) == restart else None
    ran = record.start is not None or scontrol.get("NodeList", "") not in ("", "(null)")
    log = _log_tail(root, chain, job, attempt)
    return Evidence(exit=exit_, error=record.error, scontrol=scontrol, log=log, started=ran)


def _log_tail(root: Path, chain: Chain, job: str, attempt: Attempt) -> str:
    try:
        with (root / LOGS / f"{job}_{chain.name}_{attempt.id}.out").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _answer(root: Path, chain: Chain, job: str, latest: Attempt, evidence: Evidence, failure: Failure) -> int:
    if failure.kind == "machine" and (where := nodes(evidence)) and _had_gpus(root, chain, latest):
        remember(root, where, failure.line)
    decision = decide(root, chain, job, evidence, failure)
    if isinstance(decision, Resubmit):
        try:
            chain = _resubmit(root, chain, job, decision, failure)
        except EnvironmentFault as error:
            _note(root, chain, job, latest, failure, f"could not be submitted again: {error}")
            return error.exit_code
        now = chain.jobs[job].latest
        assert now is not None
        chain = _note(root, chain, job, latest, failure, f"submitted again as {now.id}, {decision.why}")
        _retarget_downstream(root, chain, job)
        return 0
    blocked = ", ".join(chain.after({job}))
    action = f"not tried again: {decision}" + (f"; blocked: {blocked}" if blocked else "")
    _note(root, chain, job, latest, failure, action)
    return 0


def _had_gpus(root: Path, chain: Chain, attempt: Attempt) -> bool:
    """Whether Slurm gave the attempt a GPU: without one, a missing driver is no fault of a node."""
    return bool((chains.record(root, chain.name, attempt.id).start or {}).get("gpus"))


def _resubmit(root: Path, chain: Chain, job: str, decision: Resubmit, failure: Failure) -> Chain:
    """Submit a job as decided, unless an earlier sentinel did and was killed before it wrote that down."""
    rows = client.queue(chain.name, root)
    row = find(rows, chain, job)
    if row is None:
        return submit(
            root,
            chain,
            job,
            decision.resources,
            overrides=decision.overrides,
            reason=failure.kind,
            counted=decision.counted,
        )
    in_queue_already = Attempt(
        id=row.id,
        resources=decision.resources,
        overrides=decision.overrides,
        reason=failure.kind,
        counted=decision.counted,
        submitted_at=row.submitted,
    )
    return adopt(root, chain, job, in_queue_already, sentinels_of(rows, job))


def _note(root: Path, chain: Chain, job: str, latest: Attempt, failure: Failure, action: str) -> Chain:
    """Write beside an attempt why it failed and what came of it."""
    logger.info("r2v heal: %s of %s (job %s) failed, %s: %s", job, chain.name, latest.id, failure.kind, failure.line)
    logger.info("r2v heal: %s", action)
    failed = AttemptFailure(kind=failure.kind, line=failure.line, action=action, at=chains.now())
    before = chain.jobs[job].attempts
    attempts = tuple(replace(known, failure=failed) if known.id == latest.id else known for known in before)
    chain = chain.with_job(job, attempts=attempts)
    chains.write(root, chain)
    return chain


def _retarget_downstream(root: Path, chain: Chain, job: str) -> None:
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
    scontrol = client.show(attempt.id)
    evidence = collect_evidence(root, chain, job, attempt, scontrol)
    if not scontrol:
        rows = client.accounting([attempt.id]).jobs.get(attempt.id, [])
        evidence = replace(evidence, row=rows[-1] if rows else None)
    failure = classify(evidence)
    return failure is not None and failure.kind == "dependency"
