"""Use of nodes: a job that asks for several and can use one is refused, before it is submitted and when it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from r2v.errors import UsageError
from r2v.pipeline.jobs import JOBS, job
from r2v.several_nodes import node_count
from r2v.slurm.verify_outputs import made_by


def require_nodes_used(name: str, script: str, directives: Mapping[str, str]) -> None:
    """Raises UsageError where the header of a job asks for nodes that would stand idle."""
    nodes = int(directives.get("nodes", "1").partition("-")[0])
    if nodes < 2:
        return
    if not job(name).spreads:
        raise UsageError(f"{script} asks for {nodes} nodes: {_idle(name)}")
    tasks = int(directives.get("ntasks", str(nodes)))
    if tasks < nodes:
        raise UsageError(
            f"{script} asks for {nodes} nodes and {tasks} tasks, for which Slurm gives {tasks} nodes; set "
            f"--ntasks={nodes} and --ntasks-per-node=1 beside --nodes={nodes}"
        )


def require_allocation_used(words: Sequence[str]) -> None:
    """Raises UsageError where this job has nodes that its command leaves idle."""
    if (nodes := node_count()) > 1 and not any(job(name).spreads for name in made_by(words)):
        raise UsageError(f"this job has {nodes} nodes: {_idle(made_by(words)[0])}")


def _idle(name: str) -> str:
    spread = ", ".join(row.name for row in JOBS if row.spreads)
    return (
        f"{name} works on one and the others would stand idle; set --nodes=1 --ntasks=1 in its header. What trains on "
        f"several: {spread}; what plays takes helpers (#R2V {name} --helpers=N)"
    )
