"""The picture of a chain: which job waits for which, and how each stands; as text, for Mermaid, or for a program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from r2v.slurm.chain import Chain
from r2v.slurm.views.humanize import table
from r2v.slurm.views.states import JobStatus
from r2v.slurm.views.status import ChainStatus

COLOURS = {
    "done": "#cfe8cf",
    "up to date": "#cfe8cf",
    "running": "#cfe0f5",
    "failed": "#f5cfcf",
    "healing": "#f5e6c4",
    "held": "#e6dcf0",
    "cancelled": "#e0e0e0",
}


def _by_job(status: ChainStatus) -> dict[str, JobStatus]:
    return {one.job: one for one in status.jobs if not one.by_hand}


def edges(chain: Chain) -> list[tuple[str, str]]:
    """(parent, child) of every dependency, in the chain's order."""
    return [(need, name) for name, job in chain.jobs.items() for need in job.needs if need in chain.jobs]


def as_json(chain: Chain, status: ChainStatus) -> dict[str, Any]:
    """Nodes and edges. The ids of an edge whose parent has not ended are those of squeue's `%E`."""
    found = _by_job(status)
    return {
        "name": chain.name,
        "nodes": [{"job": name, "id": one.id, "state": one.state} for name, one in found.items()],
        "edges": [
            {"from": parent, "to": child, "from_id": found[parent].id, "to_id": found[child].id}
            for parent, child in edges(chain)
        ],
    }


def ascii_lines(chain: Chain, status: ChainStatus) -> list[str]:
    """One job a line, further in the more jobs stand in a row before it."""
    depth = _depths(chain)
    rows = [
        (
            "  " * depth[name] + name,
            one.state,
            one.id,
            f"<- {', '.join(chain.jobs[name].needs)}" if chain.jobs[name].needs else "",
        )
        for name, one in _by_job(status).items()
    ]
    return [chain.name, *table(rows)]


def mermaid_lines(chain: Chain, status: ChainStatus) -> list[str]:
    """A flowchart as Markdown renderers draw it."""
    found = _by_job(status)
    nodes = [f'  {name}["{name}<br/>{one.state}{" " + one.id if one.id else ""}"]' for name, one in found.items()]
    arrows = [f"  {parent} --> {child}" for parent, child in edges(chain)]
    styles = [f"  style {name} fill:{COLOURS[one.state]}" for name, one in found.items() if one.state in COLOURS]
    return ["flowchart LR", *nodes, *arrows, *styles]


def _depths(chain: Chain) -> Mapping[str, int]:
    """How many jobs stand in the longest row before each."""
    found: dict[str, int] = {}
    for name, job in chain.jobs.items():
        found[name] = 1 + max((found[need] for need in job.needs if need in found), default=-1)
    return found
