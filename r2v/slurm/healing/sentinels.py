"""Sentinels: the job that watches a chain, one however many stages it has, so that a limit on jobs counts N + 1.

It waits for any of the attempts in the queue to fail (`afternotok:101?afternotok:102`). One that is submitted later is
added to what it waits for; one that has ended well is skipped by Slurm, which ends the sentinel with the last of
them. One that has started brings the chain in line and leaves a sentinel for what is in the queue then.

A failure that it could not heal it tells whom the site profile names. Slurm writes the mail: a sentinel ends with 1
where it could not heal, and has asked for a mail where it fails, so an attempt that was healed writes none. The webhook
is one POST of JSON to the URL in the variable that the profile names; its address is a secret and stands in no file and
no log.
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
"""Seconds that a webhook may take."""


def watch(now: Comparison) -> bool:
    """Give what is in the queue its sentinel; False where Slurm does not take it."""
    from r2v.slurm.client.submit import sentinel_dependency, submit_sentinel

    watched = _watched(now)
    if not watched:
        return True
    row, ids = _waiting(now), list(watched.values())
    sentinel = row.id if row is not None else ""
    if row is None or not set(ids) <= _watches(row):
        depends = sentinel_dependency(now.chain, ids)
        try:
            if row is None or not client.update(row.id, dependency=depends):  # it may have started meanwhile
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
    """The sentinels that watch nothing any more, and all but one of those that wait. Whose job has ended, nobody says
    yet how, is about to start: it stays."""
    kept = _waiting(now) if _watched(now) or now.untold else None
    waiting = [row for row, mark in now.marked() if mark.sentinel and row.state == "PENDING" and row.id in now.asked]
    return [row.id for row in waiting if kept is None or row.id != kept.id or row.reason == NEVER]


def watched_by(root: Path, name: str) -> list[str]:
    """The jobs of a chain whose latest attempts this Slurm job was the sentinel of."""
    me = os.environ.get("SLURM_JOB_ID", "")
    chain = chains.find(root, name) if me else None
    return [
        job
        for job, entry in (chain.jobs.items() if chain else ())
        if entry.latest is not None and entry.latest.sentinel == me
    ]


def tell(name: str, job: str, root: Path = Path()) -> int:
    """Tell of a job's latest attempt where it has failed for good; returns the exit code with which its sentinel makes
    Slurm write a mail, 0 for none."""
    site = project_profile(root)
    if not (site.mail or site.webhook):
        return 0
    entry = chains.read(root, name).jobs[job]
    latest = entry.latest
    if latest is None or latest.failure is None or entry.planned is not None:
        return 0
    failure = latest.failure
    told = {"chain": name, "job": job, "id": latest.id, "kind": failure.kind, "line": failure.line}
    if url := os.environ.get(site.webhook or " "):
        _post(url, {**told, "action": failure.action, "text": f"r2v {name}: {job} failed ({failure.kind})"})
    return 1 if site.mail else 0


def _watched(now: Comparison) -> dict[str, str]:
    """The attempts in the queue, by job. One that tells its own end is watched to it: what it leaves undone, and whom
    a failure is told, is its sentinel's."""
    entries = {job: now.chain.jobs[job] for job in now.jobs}
    return {
        job: entry.latest.id
        for job, entry in entries.items()
        if entry.latest is not None and not entry.planned and now.in_queue(entry.latest.id)
    }


def _waiting(now: Comparison) -> Queued | None:
    """The sentinel that stays: of those that watch the whole chain, the one that the attempts name, or the first."""
    named = {entry.latest.sentinel for entry in now.chain.jobs.values() if entry.latest is not None}
    whole = [row for row, mark in now.marked(WHOLE) if row.state == "PENDING" and row.reason != NEVER]
    return min(whole, key=lambda row: (row.id not in named, client.job_number(row.id)), default=None)


def _watches(row: Queued) -> set[str]:
    """The jobs that a waiting sentinel waits for."""
    return set(re.findall(r"after(?:notok|any):(\d+)\b(?!\(failed)", row.dependency))


def _post(url: str, value: dict[str, str]) -> None:
    body = json.dumps(value).encode()
    try:
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=TIMEOUT):
            pass
    except (OSError, ValueError, urllib.error.URLError) as error:
        logger.warning("r2v: the webhook was not told (%s)", type(error).__name__)
