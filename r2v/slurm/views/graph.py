"""The dependency graph of a chain with the state of each job: as text, Mermaid or JSON."""

from __future__ import annotations

from typing import Any

from r2v.console import text_table
from r2v.slurm.chain.chain import Chain
from r2v.slurm.views.chain_status import ChainStatus

COLOURS = {
    "done": "#cfe8cf",
    "up to date": "#cfe8cf",
    "running": "#cfe0f5",
    "failed": "#f5cfcf",
    "healing": "#f5e6c4",
    "blocked": "#e6dcf0",
    "cancelled": "#e0e0e0",
}


def edges(chain: Chain) -> list[tuple[str, str]]:
    """Return (parent, child) of every dependency, in the chain's order."""
    return [(need, name) for name, job in chain.jobs.items() for need in job.needs if need in chain.jobs]


def as_json(status: ChainStatus) -> dict[str, Any]:
    """Return nodes and edges. Ids of an edge whose parent has not ended are those of squeue's `%E`."""
    jobs = status.own_jobs
    return {
        "name": status.chain.name,
        "nodes": [{"job": name, "id": job.id, "state": job.state} for name, job in jobs.items()],
        "edges": [
            {"from": parent, "to": child, "from_id": jobs[parent].id, "to_id": jobs[child].id}
            for parent, child in edges(status.chain)
        ],
    }


def ascii_lines(status: ChainStatus) -> list[str]:
    """Return one line per job, indented by its depth."""
    chain, depth = status.chain, dict[str, int]()
    for name, job in chain.jobs.items():  # the length of the longest path to it
        depth[name] = 1 + max((depth[need] for need in job.needs if need in depth), default=-1)
    rows = [
        (
            "  " * depth[name] + name,
            shown.state,
            shown.id,
            f"<- {', '.join(chain.jobs[name].needs)}" if chain.jobs[name].needs else "",
        )
        for name, shown in status.own_jobs.items()
    ]
    return [chain.name, *(f"  {line}" for line in text_table(rows).splitlines())]


def mermaid_lines(status: ChainStatus) -> list[str]:
    """Return a Mermaid flowchart."""
    jobs = status.own_jobs
    nodes = [f'  {name}["{name}<br/>{job.state}{" " + job.id if job.id else ""}"]' for name, job in jobs.items()]
    arrows = [f"  {parent} --> {child}" for parent, child in edges(status.chain)]
    styles = [f"  style {name} fill:{COLOURS[job.state]}" for name, job in jobs.items() if job.state in COLOURS]
    return ["flowchart LR", *nodes, *arrows, *styles]
