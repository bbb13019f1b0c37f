"""Submission of missing jobs: each job of a plan is adopted if it is in the queue, else submitted, in order. A pending
job whose header was edited since is cancelled and submitted anew.

The caller holds the chain's lease and has written the chain. If this is interrupted (killed, refused halfway), the
chain's file and the comments in the queue suffice to go on, and nothing is submitted twice.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from r2v.config import Config
from r2v.console import text_table
from r2v.errors import EnvironmentFault, UsageError
from r2v.log import logger
from r2v.slurm.chain import chain as chains
from r2v.slurm.chain import job_record
from r2v.slurm.chain.chain import Attempt, Chain, parse_comment
from r2v.slurm.chain.experience import sized
from r2v.slurm.client import client
from r2v.slurm.client.client import Partition, Queued, SubmitCheck
from r2v.slurm.client.messages import refusal_passes
from r2v.slurm.client.sacct import is_alive, memory
from r2v.slurm.job.command_line import require_nodes_used
from r2v.slurm.site import requests
from r2v.slurm.site.directives import gpu_count, gpu_kind, node_count
from r2v.slurm.site.headers import Resources
from r2v.slurm.site.script_text import read_script, script_lines
from r2v.storage.paths import SCRIPTS

_NO_NODE = "Requested node configuration is not available"


def submit_missing(
    root: Path, chain: Chain, due: Sequence[str], resources: Mapping[str, Resources], reason: str | None = None
) -> tuple[Chain, list[str]]:
    """Submit those of the `due` jobs that are not in the queue; returns the chain and the submitted jobs. `reason` is
    recorded with new attempts (None: first or rerun). Planned attempts are written before the first sbatch, so that
    the next reconciliation can finish an interrupted submission.

    Raises EnvironmentFault if Slurm refuses one; the submitted ones are recorded.
    """
    from r2v.slurm.healing.reconcile import bring_in_line

    rows = client.queue(chain.name, root)
    for row in rows:  # whose configuration's hash has changed since they were submitted
        mark = parse_comment(row.comment)
        if mark is not None and mark.sha != chain.config_sha:
            changed = chain.comment(mark.job, attempt=mark.attempt, sentinel=mark.sentinel, own=mark.own)
            client.update(row.id, comment=changed)
    alive = {row.id for row in rows}
    _require_whole_queue(root, chain, due, alive)
    alive -= _end_edited(rows, chain, due, resources)
    for name in due:
        latest = chain.jobs[name].latest
        if latest is None or latest.id not in alive:
            why = reason or ("rerun" if chain.jobs[name].attempts else "first")
            planned = Attempt(id="", resources=dict(resources[name].directives), reason=why)
            chain = chain.with_job(name, planned=planned, skipped=None)
        elif chain.jobs[name].skipped:
            chain = chain.with_job(name, skipped=None)
    chains.write(root, chain)  # before the first sbatch: the plan survives a kill
    now = bring_in_line(root, chain, strict=True)
    if now.refusal:
        count = sum(now.standing(name) == "active" for name in due)
        goes_on = (
            "they go on, and as soon as there is room the rest is added by whichever of them starts or ends, or by the "
            "same command"
        )
        raise EnvironmentFault(
            f"{chain.name}: {count} of {len(due)} jobs are in the queue, {now.refusal}; "
            + (goes_on if count else "type the same command again")
        )
    return now.chain, now.submitted


def next_request(root: Path, chain: Chain, name: str, config: Config) -> Resources:
    """Return a job's next request: its header with the sizes that healing learned. Raises as `headers.read` does."""
    request = requests.of_job(root, chain.jobs[name].script, name, config)
    return replace(request, directives=sized(root, chain.name, name, request.directives))


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the directives that differ, as `mem=16G -> 32G`, without `exclude`, which healing sets."""
    names = sorted((before.keys() | after.keys()) - {"exclude"})
    pairs = [(name, before.get(name, "none"), after.get(name, "none")) for name in names]
    return [f"{name}={old} -> {new}" for name, old, new in pairs if old != new]


def _end_edited(
    rows: Sequence[Queued], chain: Chain, due: Sequence[str], resources: Mapping[str, Resources]
) -> set[str]:
    """Cancel pending jobs whose headers were edited since; returns their ids."""
    pending, ended = {row.id for row in rows if row.state == "PENDING"}, set[str]()
    for name in due:
        latest = chain.jobs[name].latest
        edits = changes(latest.resources, resources[name].directives) if latest is not None else []
        if latest is not None and latest.id in pending and edits:
            logger.info(
                "job resubmitted after a header edit: chain=%s stage=%s job=%s changes=%s",
                *(chain.name, name, latest.id, ", ".join(edits)),
            )
            ended.add(latest.id)
    client.cancel(sorted(ended))
    return ended


def _require_whole_queue(root: Path, chain: Chain, due: Sequence[str], alive: Collection[str]) -> None:
    """Raise EnvironmentFault if squeue lists none of the chain's jobs but the controller knows one of them: a cache or
    filter of the site hides them, and the job would be submitted twice."""
    if alive:
        return
    for name in due:
        latest = chain.jobs[name].latest
        if latest is None or job_record.record(root, chain.name, latest.id).last_exit is not None:
            continue
        if is_alive(state := client.show(latest.id).get("JobState", "")):
            raise EnvironmentFault(  # rather than submit it twice
                f"{chain.name}: squeue lists none of its jobs, but scontrol shows {name} (job {latest.id}) as {state}; "
                "nothing was submitted. See what stands between you and squeue (an alias, a cache), and try again"
            )


def find(rows: Sequence[Queued], chain: Chain, job: str) -> Queued | None:
    """Return the queued Slurm job of a stage: its latest attempt, or one whose submitter died before recording it."""
    latest = chain.jobs[job].latest
    ours = [row for row in rows if (mark := parse_comment(row.comment)) and mark.job == job and not mark.sentinel]
    recorded = [row for row in ours if latest is not None and row.id == latest.id]
    newest_first = sorted(ours, key=lambda row: client.job_number(row.id), reverse=True)
    return next(iter(recorded or newest_first), None)


def require_acceptable(due: Sequence[str], chain: Chain, resources: Mapping[str, Resources]) -> None:
    """Test each job with `sbatch --test-only` before any is submitted. Raises UsageError naming the script whose header
    this cluster cannot satisfy; nodes that are down and a full queue are no errors, since both pass."""
    for name in due:
        script = chain.jobs[name].script
        require_nodes_used(name, str(SCRIPTS / script), resources[name].directives)
        answer = check_request(resources[name])
        if not answer.ok:
            raise UsageError(
                f"{_place(script, resources[name].sized_by, answer.line)} asks for what this cluster will not give "
                f"{name}: {answer.line}; nothing was submitted. `r2v doctor` names what there is, `r2v cluster set "
                "partition=... cpu_partition=... gpu=... account=...` writes it into all headers"
            )


def _place(script: str, sized_by: str, refusal: str) -> str:
    """Return the script whose header is refused, with the line number of an option that sbatch does not recognize: the
    job's own script for its time limit, else the script that sizes it."""
    if unknown := re.search(r"unrecognized option '(--[\w-]+)", refusal):
        for path in (SCRIPTS / script, SCRIPTS / sized_by):
            for number, line in enumerate(script_lines(read_script(path)), start=1):
                if unknown[1] in line:
                    return f"{path}:{number}"
    return str(SCRIPTS / (script if "ime limit" in refusal else sized_by))


def check_request(resources: Resources) -> SubmitCheck:
    """Test a header with `sbatch --test-only`; downed nodes and a full queue pass, so that they refuse nothing."""
    answer = client.test_only(
        [word for word in resources.sbatch_args() if not word.startswith(("--output", "--error", "--job-name"))]
    )
    if answer.ok or refusal_passes(answer.line):
        return replace(answer, ok=True)
    if _NO_NODE in answer.line and any(_offers(partition, resources) for partition in client.partitions()):
        return replace(answer, ok=True, line=f"{answer.line} now, its nodes are out of order; it would wait")
    return answer


def _offers(partition: Partition, resources: Resources) -> bool:
    """True if a partition's nodes, up or down, satisfy a header."""
    named = resources.directives.get("partition", "")
    if named and partition.name not in named.split(","):
        return False
    kind, nodes = gpu_kind(resources.directives), node_count(resources.directives.get("nodes", ""))
    offered = [item.split("(")[0] for item in partition.gres.split(",")]
    fits = [item for item in offered if not kind or f":{kind}:" in item]
    enough = not resources.gpus or any(gpu_count(item) >= resources.gpus / nodes for item in fits)
    return enough and (memory(resources.directives.get("mem", "")) or 0) <= partition.memory << 20


def table(chain: Chain, due: Sequence[str], submitted: Sequence[str], resources: Mapping[str, Resources]) -> str:
    """Return a table of a chain's jobs: ids, dependencies, GPUs and time limits."""
    rows = [("job", "id", "waits for", "GPUs", "time", "")]
    for name, job in chain.jobs.items():
        latest = job.latest
        if name not in due:
            why = f"skipped ({job.skipped})" if job.skipped else f"made by the chain {job.owner}" if job.owner else ""
            rows.append((name, "-", "", "", "", why))
        elif latest is not None:
            waits = " ".join(need for need in job.needs if need in due)
            before = "" if name in submitted else "in the queue before"
            limit = latest.resources.get("time", "")
            rows.append((name, latest.id, waits, str(resources[name].gpus), limit, before))
    return text_table(rows)
