"""Healing of one failed attempt: its evidence, its failure, and the decision recorded in the chain.

`examine` gathers evidence from the attempt's records, its log, the controller and, in doubt, accounting; `answer`
decides (r2v.slurm.healing.retry_policy) and records the failure and the attempt that follows.
r2v.slurm.healing.reconcile submits that, and makes pending jobs depend on it: they keep their ids and queue places.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from r2v.errors import EnvironmentFault, FailureKind, R2VError
from r2v.log import logger
from r2v.slurm.chain import chain as chains
from r2v.slurm.chain import job_record
from r2v.slurm.chain.chain import Attempt, AttemptFailure, Chain
from r2v.slurm.chain.experience import learn, remember
from r2v.slurm.client import client
from r2v.slurm.client.command import terminal
from r2v.slurm.client.sacct import ENDED, is_alive
from r2v.slurm.healing.classify import Evidence, Failure, classify
from r2v.slurm.healing.retry_policy import Resubmit, decide, past_limits
from r2v.slurm.site.directives import error_file
from r2v.storage.paths import LOGS

SETTLE = 12.0
"""Seconds within which the controller and accounting learn of a job's end."""
LOG_TAIL = 64 << 10
"""Bytes of a log's end searched for known errors: a traceback fits, and any job can read them in a moment."""
DOUBTFUL: tuple[FailureKind, ...] = ("killed", "bug", "unknown", "cancelled", "no_log")
"""Kinds that late accounting may still turn into another, above all host_oom."""


def ended_well(root: Path, chain: Chain, attempt: Attempt, state: str = "") -> bool | None:
    """True if an attempt that is not in the queue has succeeded, by the controller's `state`, else by its own record,
    else by accounting; None if unknown."""
    recorded = job_record.record(root, chain.name, attempt.id).last_exit
    if state in ENDED:
        return state == "COMPLETED" and not (recorded or {}).get("kind")
    if recorded is not None:
        return recorded.get("rc") == 0 and not recorded.get("kind")
    rows = client.accounting([attempt.id]).jobs.get(attempt.id, [])
    return rows[-1].state == "COMPLETED" if rows and rows[-1].state in ENDED else None


def examine(
    root: Path, chain: Chain, job: str, attempt: Attempt, *, patient: bool = False, self_reported: bool = False
) -> tuple[Evidence, Failure | None]:
    """Return the evidence on an attempt, and its failure; None if it has none, or it is not known yet.

    self_reported: the attempt itself, about to exit, is the caller: Slurm is not queried, and kinds that it may yet
    change give None. patient: the attempt has ended; wait until the controller and accounting know it.
    """
    if self_reported:
        evidence = collect_evidence(root, chain, job, attempt, {})
        failure = classify(evidence)
        return evidence, None if failure is None or failure.kind in DOUBTFUL else failure
    clock = terminal()
    deadline = clock.monotonic() + (SETTLE if patient else 0.0)
    while is_alive((scontrol := client.show(attempt.id)).get("JobState", "")) and clock.monotonic() < deadline:
        clock.sleep(0.3)  # the controller learns of an end within a second, usually
    evidence = collect_evidence(root, chain, job, attempt, scontrol)
    failure = classify(evidence)
    while failure is None and not scontrol or failure and failure.kind in DOUBTFUL:
        accounting = client.accounting([attempt.id])
        rows = accounting.jobs.get(attempt.id, [])
        evidence = replace(evidence, row=rows[-1] if rows else None)
        failure = classify(evidence)
        if accounting.down or rows and not is_alive(rows[-1].state):
            break
        if clock.monotonic() >= deadline:
            return evidence, failure if patient else None
        clock.sleep(0.5)  # slurmdbd batches its updates
    return evidence, failure


def collect_evidence(root: Path, chain: Chain, job: str, attempt: Attempt, scontrol: dict[str, str]) -> Evidence:
    """Return the evidence of the attempt's own records, its error file (if its header names one), its log and the
    controller, without accounting."""
    record, name = job_record.record(root, chain.name, attempt.id), f"{job}_{chain.name}"
    ran = record.start is not None or scontrol.get("NodeList", "") not in ("", "(null)")
    errors = error_file(attempt.resources, name, attempt.id)
    paths = [*([root / errors] if errors else []), root / LOGS / f"{name}_{attempt.id}.out"]
    log = "\n".join(filter(None, map(end_of, paths)))
    return Evidence(
        start=record.start, exit=record.last_exit, error=record.error, scontrol=scontrol, log=log, started=ran
    )


def end_of(path: Path) -> str:
    """Return the last `LOG_TAIL` bytes of a log; "" if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL))
            return file.read().decode(errors="replace")
    except OSError:  # a job that never began has no log; its other evidence decides
        return ""


def answer(root: Path, chain: Chain, job: str, latest: Attempt, evidence: Evidence, failure: Failure) -> Chain:
    """Return the chain with the failure recorded at its attempt, and the next attempt planned if it may have one."""
    had_gpus = bool((evidence.start or {}).get("gpus"))  # without one, a missing driver is no fault of a node
    if failure.kind == "machine" and evidence.nodes and had_gpus:
        remember(root, evidence.nodes, failure.line)
    try:
        decision = decide(root, chain, job, evidence, failure)
        if isinstance(decision, Resubmit):
            limit = past_limits(root, chain, job, failure, decision)
            grown = ", ".join(learn(root, chain.name, job, latest.resources, decision.resources))
            if limit:
                decision = limit + (f"; the next submission asks for {grown}" if grown else "")
    except EnvironmentFault:  # passes by itself: the next reconciliation decides
        raise
    except R2VError as error:  # a damaged header or configuration needs a person
        decision = str(error)
    if isinstance(decision, Resubmit):
        planned = Attempt(
            id="",
            resources=decision.resources,
            overrides=decision.overrides,
            reason=failure.kind,
            counted=decision.counted,
        )
        chain, action = chain.with_job(job, planned=planned), f"submitted again, {decision.why}"
    else:
        blocked = ", ".join(chain.after({job}))
        action = f"not tried again: {decision}" + (f"; blocked: {blocked}" if blocked else "")
    names = (chain.name, job, latest.id)
    logger.info("stage failed: chain=%s stage=%s job=%s kind=%s reason=%s", *names, failure.kind, failure.line)
    logger.info("healing decided: chain=%s stage=%s job=%s action=%s", *names, action)
    failed = AttemptFailure(kind=failure.kind, line=failure.line, action=action, at=chains.now())
    before = chain.jobs[job].attempts
    attempts = tuple(replace(attempt, failure=failed) if attempt.id == latest.id else attempt for attempt in before)
    return chain.with_job(job, attempts=attempts)
