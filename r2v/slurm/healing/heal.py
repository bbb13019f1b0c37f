"""Healing: what has become of an attempt that ended without success, and what is done about it.

`examine` gathers what the attempt's records, its log, the controller and, where nothing else can tell, accounting say;
`answer` decides (r2v.slurm.healing.retry_policy) and writes down both the failure and the attempt that is to follow.
r2v.slurm.healing.reconcile submits it, and points what waits at it: it keeps its id and its place in the queue.
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
"""Seconds within which a job that has just ended is known as ended, to the controller and to accounting."""
LOG_TAIL = 64 << 10
"""Bytes of a log's end that are searched for known errors."""
DOUBTFUL: tuple[FailureKind, ...] = ("killed", "bug", "unknown", "cancelled", "no_log")
"""Kinds that accounting, which comes late, may yet turn into another (host_oom, above all)."""


def ended_well(root: Path, chain: Chain, attempt: Attempt, state: str = "") -> bool | None:
    """True if an attempt that is not in the queue has succeeded: by the `state` that the controller remembers, else by
    its own record, else by accounting. None where nobody says."""
    recorded = job_record.record(root, chain.name, attempt.id).last_exit
    if state in ENDED:
        return state == "COMPLETED" and not (recorded or {}).get("kind")
    if recorded is not None:
        return recorded.get("rc") == 0 and not recorded.get("kind")
    rows = client.accounting([attempt.id]).jobs.get(attempt.id, [])
    return rows[-1].state == "COMPLETED" if rows and rows[-1].state in ENDED else None


def examine(
    root: Path, chain: Chain, job: str, attempt: Attempt, *, patient: bool = False, told: bool = False
) -> tuple[Evidence, Failure | None]:
    """All that can be known of an attempt, and its failure; None where it has none, or nobody can tell yet.

    told: by the attempt itself, which is about to end: Slurm is asked nothing, and what it may yet know better is left
    to it. patient: the end has come, and is waited for until Slurm and accounting know of it.
    """
    if told:
        evidence = collect_evidence(root, chain, job, attempt, {})
        failure = classify(evidence)
        return evidence, None if failure is None or failure.kind in DOUBTFUL else failure
    clock = terminal()
    deadline = clock.monotonic() + (SETTLE if patient else 0.0)
    while is_alive((scontrol := client.show(attempt.id)).get("JobState", "")) and clock.monotonic() < deadline:
        clock.sleep(0.3)
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
        clock.sleep(0.5)
    return evidence, failure


def collect_evidence(root: Path, chain: Chain, job: str, attempt: Attempt, scontrol: dict[str, str]) -> Evidence:
    """The evidence of the attempt's own records, its log and the controller; accounting aside."""
    record = job_record.record(root, chain.name, attempt.id)
    ran = record.start is not None or scontrol.get("NodeList", "") not in ("", "(null)")
    log = _log_tail(root, chain, job, attempt)
    return Evidence(
        start=record.start, exit=record.last_exit, error=record.error, scontrol=scontrol, log=log, started=ran
    )


def _log_tail(root: Path, chain: Chain, job: str, attempt: Attempt) -> str:
    """The end of its log, behind that of the file which its header gives errors."""
    name = f"{job}_{chain.name}"
    errors = error_file(attempt.resources, name, attempt.id)
    paths = [*([root / errors] if errors else []), root / LOGS / f"{name}_{attempt.id}.out"]
    return "\n".join(filter(None, map(end_of, paths)))


def end_of(path: Path) -> str:
    """The last `LOG_TAIL` bytes of a log; "" where it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def answer(root: Path, chain: Chain, job: str, latest: Attempt, evidence: Evidence, failure: Failure) -> Chain:
    """The chain with a failure written beside the attempt that it ended, and the attempt planned that it asks for."""
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
    except EnvironmentFault:
        raise
    except R2VError as error:
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
    logger.info("%s: %s (job %s) failed, %s: %s", chain.name, job, latest.id, failure.kind, failure.line)
    logger.info("%s: %s (job %s): %s", chain.name, job, latest.id, action)
    failed = AttemptFailure(kind=failure.kind, line=failure.line, action=action, at=chains.now())
    before = chain.jobs[job].attempts
    attempts = tuple(replace(known, failure=failed) if known.id == latest.id else known for known in before)
    return chain.with_job(job, attempts=attempts)
