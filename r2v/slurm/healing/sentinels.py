"""Sentinels: the one job that watches a chain, however many stages it has, so that N stages count as N + 1 jobs.

It depends on the failure of any queued attempt (`afternotok:101?afternotok:102`). Later submissions are added to its
dependency; Slurm drops attempts that succeed, and removes the sentinel with the last of them. A sentinel that starts
brings the chain in line, which submits a new sentinel for the jobs then in the queue.

Failures that healing gave up on are reported as the site profile says. Slurm writes the mail: sentinels request one on
failure and exit with 1 only if healing gave up, so healed attempts send none. The webhook is one POST of JSON to the
URL in the variable that the profile names; the URL is a secret and appears in no file and no log.
"""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from pathlib import Path

from r2v.errors import EnvironmentFault
from r2v.log import logger
from r2v.slurm.chain import chain as chains
from r2v.slurm.chain.chain import WHOLE
from r2v.slurm.client import client
from r2v.slurm.client.client import Queued
from r2v.slurm.healing.comparison import NEVER, Comparison, pending
from r2v.slurm.site.site_profile import project_profile

TIMEOUT = 20.0
"""Seconds that a webhook may take: the sentinel has five minutes for everything."""


def watch(now: Comparison) -> bool:
    """Make one sentinel depend on all queued attempts; False if Slurm refuses it."""
    from r2v.slurm.client.submit import sentinel_dependency, submit_sentinel

    watched = _watched(now)
    if not watched:
        return True
    row, ids = _waiting(now), list(watched.values())
    sentinel = row.id if row is not None else ""
    if row is None or not set(ids) <= _watches(row):
        depends = sentinel_dependency(now.chain, ids)
        try:
            if row is None or not client.update(row.id, dependency=depends):  # it may have started since squeue
                sentinel = submit_sentinel(now.root, now.chain, ids)
        except EnvironmentFault as error:
            now.undone.append(f"the sentinel of {', '.join(watched)} was refused ({error})")
            return False
        now.rows[sentinel] = pending(sentinel, WHOLE, now.chain, depends)
    chain = now.chain
    for job in watched:
        if now.latest(job).sentinel != sentinel:
            chain = chain.with_sentinel(job, sentinel)
    if chain is not now.chain:
        now.write(chain)
    return True


def idle_sentinels(now: Comparison) -> list[str]:
    """Return the pending sentinels that watch nothing, and all but one of the others. One stays if an outcome is not
    known yet: it may be about to start."""
    current = _waiting(now) if _watched(now) or now.unknown_ends else None
    waiting = [row for row, mark in now.marked() if mark.sentinel and row.state == "PENDING" and row.id in now.listed]
    return [row.id for row in waiting if current is None or row.id != current.id or row.reason == NEVER]


def watched_by(root: Path, name: str) -> list[str]:
    """Return the jobs of a chain whose latest attempts this Slurm job watched as their sentinel."""
    me = os.environ.get("SLURM_JOB_ID", "")
    chain = chains.find(root, name) if me else None
    return [
        job
        for job, entry in (chain.jobs.items() if chain else ())
        if entry.latest is not None and entry.latest.sentinel == me
    ]


def notify(name: str, job: str, root: Path = Path()) -> int:
    """Report a job's latest attempt if healing gave up on it; returns the exit code: 1 for a mail by Slurm, else 0."""
    site = project_profile(root)
    if not (site.mail or site.webhook):
        return 0
    entry = chains.read(root, name).jobs[job]
    latest = entry.latest
    if latest is None or latest.failure is None or entry.planned is not None:
        return 0
    failure = latest.failure
    report = {"chain": name, "job": job, "id": latest.id, "kind": failure.kind, "line": failure.line}
    if url := os.environ.get(site.webhook or " "):
        _post(url, {**report, "action": failure.action, "text": f"r2v {name}: {job} failed ({failure.kind})"})
    return 1 if site.mail else 0


def _watched(now: Comparison) -> dict[str, str]:
    """Return the queued attempts by job; of those that report their own end the sentinel finishes the healing."""
    entries = {job: now.chain.jobs[job] for job in now.jobs}
    return {
        job: entry.latest.id
        for job, entry in entries.items()
        if entry.latest is not None and not entry.planned and now.in_queue(entry.latest.id)
    }


def _waiting(now: Comparison) -> Queued | None:
    """Return the pending sentinel to keep: the one that the attempts name, or the oldest; None for none."""
    named = {entry.latest.sentinel for entry in now.chain.jobs.values() if entry.latest is not None}
    whole = [row for row, mark in now.marked(WHOLE) if row.state == "PENDING" and row.reason != NEVER]
    return min(whole, key=lambda row: (row.id not in named, client.job_number(row.id)), default=None)


def _watches(row: Queued) -> set[str]:
    """Return the jobs in a pending sentinel's dependency."""
    return set(re.findall(r"after(?:notok|any):(\d+)\b(?!\(failed)", row.dependency))


def _post(url: str, value: dict[str, str]) -> None:
    body = json.dumps(value).encode()
    try:
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=TIMEOUT):
            pass
    except (OSError, ValueError, urllib.error.URLError) as error:
        # The error's text may hold the secret URL; its type does not.
        logger.warning("webhook failed: error=%s", type(error).__name__)
