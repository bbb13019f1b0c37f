"""Limits of the site: the most time and memory that a partition and a QOS give one job.

    found = limits({"partition": "gpu", "qos": "long"}, "")    # one scontrol, one sacctmgr
    found["time"]                                   # Ceiling(value=1440, rule="MaxTime=1-00:00:00 of partition gpu")

Slurm takes a job that asks for more and never starts it, unless EnforcePartLimits has it refuse. Where several
partitions are named the largest limit counts: any of them may take the job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from r2v.errors import EnvironmentFault
from r2v.slurm.client.command import call, patience
from r2v.slurm.client.sacct import memory
from r2v.slurm.site.directives import minutes


def _bytes(text: str) -> int:
    return memory(text) or 0


_OF_PARTITION = {
    "time": (minutes, "MaxTime"),
    "mem": (_bytes, "MaxMemPerNode"),
    "mem-per-cpu": (_bytes, "MaxMemPerCPU"),
}
"""The directive, how its value is read, and the partition's limit on it."""
_PATIENCE = 2.0
"""Seconds for which a silent controller is asked again: a dying job has no more to spend on a limit."""


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """The most that a site gives: minutes or bytes, and the rule as Slurm writes it."""

    value: int
    rule: str


def limits(directives: Mapping[str, str], partition: str) -> dict[str, Ceiling]:
    """The limits for a job of these directives, by directive (time, mem, mem-per-cpu) as far as there are any and Slurm
    tells; `partition`: where it runs when no directive names one."""
    names = [name for name in (directives.get("partition") or partition).split(",") if name]
    rows = [row for name in names if (row := _partition(name))]
    qos = {directives.get("qos", ""), *(row.get("QoS", "") for row in rows)} if rows else set()
    least: dict[str, Ceiling] = {}
    for found in (_of_partitions(rows), *map(_of_qos, sorted(qos - {"", "N/A", "(null)"}))):
        for directive, ceiling in found:
            least[directive] = min(least.get(directive, ceiling), ceiling, key=lambda one: one.value)
    return least


def exceeded(directives: Mapping[str, str]) -> str | None:
    """The rule that a request breaks, with what it asks for; None where it breaks none that is known."""
    for name, ceiling in limits(directives, "").items():
        if _OF_PARTITION[name][0](directives.get(name, "")) > ceiling.value:
            return f"--{name}={directives[name]} is beyond {ceiling.rule}"
    return None


def _partition(name: str) -> dict[str, str]:
    """The controller's fields of a partition; {} where it does not tell."""
    try:
        text = call(["scontrol", "show", "partition", "-o", name], limit=min(patience(), _PATIENCE))
    except EnvironmentFault:
        return {}
    return dict(word.split("=", 1) for word in text.split() if "=" in word)


def _of_partitions(rows: Sequence[Mapping[str, str]]) -> Iterator[tuple[str, Ceiling]]:
    """The largest limits of these partitions; none where one of them has none."""
    for directive, (read, field) in _OF_PARTITION.items():
        values = [read(row.get(field, "")) for row in rows]
        if values and all(values):
            row = rows[values.index(max(values))]
            rule = f"{field}={row[field]} of partition {row.get('PartitionName', '')}"
            yield directive, Ceiling(value=max(values), rule=rule)


def _of_qos(name: str) -> Iterator[tuple[str, Ceiling]]:
    """The limits of a QOS."""
    words = ["sacctmgr", "-nP", "show", "qos", name, "format=maxwall,maxtresperjob"]
    try:
        time, _, resources = call(words, limit=min(patience(), _PATIENCE)).strip().partition("|")
    except EnvironmentFault:
        return
    if minutes(time):
        yield "time", Ceiling(value=minutes(time), rule=f"MaxWall={time} of QOS {name}")
    size = next((word.removeprefix("mem=") for word in resources.split(",") if word.startswith("mem=")), "")
    if _bytes(size):
        yield "mem", Ceiling(value=_bytes(size), rule=f"MaxTRESPerJob=mem={size} of QOS {name}")
