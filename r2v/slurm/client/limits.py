"""Limits of the site: the most time and memory that a partition and a QOS grant one job.

    ceilings = limits({"partition": "gpu", "qos": "long"}, "")    # one scontrol, one sacctmgr
    ceilings["time"]                                # Ceiling(value=1440, rule="MaxTime=1-00:00:00 of partition gpu")

Slurm accepts a job beyond them and never starts it, unless EnforcePartLimits is set. With several partitions the
largest limit counts: any of them may run the job.
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
"""By directive: the parser of its value, and the partition's limit on it."""
_PATIENCE = 2.0
"""Seconds for which a silent controller is retried: a dying job has little time left."""


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """A site's limit, in minutes or bytes, and the rule as Slurm writes it."""

    value: int
    rule: str


def limits(directives: Mapping[str, str], partition: str) -> dict[str, Ceiling]:
    """Return the limits of a job by directive (time, mem, mem-per-cpu). `partition`: used if no directive names one."""
    names = [name for name in (directives.get("partition") or partition).split(",") if name]
    rows = [row for name in names if (row := _partition(name))]
    qos = {directives.get("qos", ""), *(row.get("QoS", "") for row in rows)} if rows else set()
    least: dict[str, Ceiling] = {}
    for ceilings in (_of_partitions(rows), *map(_of_qos, sorted(qos - {"", "N/A", "(null)"}))):
        for directive, ceiling in ceilings:
            least[directive] = min(least.get(directive, ceiling), ceiling, key=lambda limit: limit.value)
    return least


def exceeded(directives: Mapping[str, str]) -> str | None:
    """Return the limit that a request exceeds, with the requested value; None if it exceeds no known limit."""
    for name, ceiling in limits(directives, "").items():
        if _OF_PARTITION[name][0](directives.get(name, "")) > ceiling.value:
            return f"--{name}={directives[name]} is beyond {ceiling.rule}"
    return None


def _partition(name: str) -> dict[str, str]:
    """Return the controller's fields of a partition; {} if it does not answer."""
    try:
        text = call(["scontrol", "show", "partition", "-o", name], limit=min(patience(), _PATIENCE))
    except EnvironmentFault:  # an unknown limit limits nothing: Slurm itself decides later
        return {}
    return dict(word.split("=", 1) for word in text.split() if "=" in word)


def _of_partitions(rows: Sequence[Mapping[str, str]]) -> Iterator[tuple[str, Ceiling]]:
    """Yield the largest limits of these partitions; none for a directive that one of them does not limit."""
    for directive, (read, field) in _OF_PARTITION.items():
        values = [read(row.get(field, "")) for row in rows]
        if values and all(values):
            row = rows[values.index(max(values))]
            rule = f"{field}={row[field]} of partition {row.get('PartitionName', '')}"
            yield directive, Ceiling(value=max(values), rule=rule)


def _of_qos(name: str) -> Iterator[tuple[str, Ceiling]]:
    """Yield the limits of a QOS."""
    words = ["sacctmgr", "-nP", "show", "qos", name, "format=maxwall,maxtresperjob"]
    try:
        time, _, resources = call(words, limit=min(patience(), _PATIENCE)).strip().partition("|")
    except EnvironmentFault:  # accounting is down, or the site has none
        return
    if minutes(time):
        yield "time", Ceiling(value=minutes(time), rule=f"MaxWall={time} of QOS {name}")
    size = next((word.removeprefix("mem=") for word in resources.split(",") if word.startswith("mem=")), "")
    if _bytes(size):
        yield "mem", Ceiling(value=_bytes(size), rule=f"MaxTRESPerJob=mem={size} of QOS {name}")
