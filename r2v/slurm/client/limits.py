"""Limits of the site: the most time and memory that a partition and a QOS give one job.

    limits({"partition": "gpu", "qos": "long"}, "")    # one scontrol, one sacctmgr
    limits(...).time                                   # Ceiling(value=1440, rule="MaxTime=1-00:00:00 of partition gpu")

Slurm takes a job that asks for more and never starts it, unless EnforcePartLimits has it refuse. Where several
partitions are named the largest limit counts: any of them may take the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from r2v.errors import EnvironmentFault
from r2v.slurm.client.command import call, patience
from r2v.slurm.client.sacct import memory
from r2v.slurm.site.directives import minutes

_MEMORY = {"mem": "MaxMemPerNode", "mem-per-cpu": "MaxMemPerCPU"}
"""The directive, and the partition's limit on it, in MB."""
_PATIENCE = 2.0
"""Seconds for which a silent controller is asked again: a dying job has no more to spend on a limit."""


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """The most that a site gives: minutes or bytes, and the rule as Slurm writes it."""

    value: int
    rule: str


@dataclass(frozen=True, kw_only=True)
class SiteLimits:
    """The limits for one job; None where there is none, or Slurm does not tell."""

    time: Ceiling | None = None
    memory: Mapping[str, Ceiling] = field(default_factory=dict)
    """By directive: mem, mem-per-cpu."""

    def exceeded_by(self, directives: Mapping[str, str]) -> str | None:
        """The rule that a request breaks, with what it asks for; None where it breaks none that is known."""
        ceilings = {**({"time": self.time} if self.time else {}), **self.memory}
        for name, ceiling in ceilings.items():
            asked = (minutes if name == "time" else _bytes)(directives.get(name, ""))
            if asked > ceiling.value:
                return f"--{name}={directives[name]} is beyond {ceiling.rule}"
        return None


def limits(directives: Mapping[str, str], partition: str) -> SiteLimits:
    """The limits for a job of these directives; `partition`: where it runs when no directive names one."""
    names = [name for name in (directives.get("partition") or partition).split(",") if name]
    rows = [row for name in names if (row := _partition(name))]
    if not rows:
        return SiteLimits()
    qos = {directives.get("qos", ""), *(row.get("QoS", "") for row in rows)} - {"", "N/A", "(null)"}
    wall, largest = _of_qos(sorted(qos))
    by_memory = {
        directive: _least([_largest(rows, field, _bytes), *(largest if directive == "mem" else [])])
        for directive, field in _MEMORY.items()
    }
    return SiteLimits(
        time=_least([_largest(rows, "MaxTime", minutes), *wall]),
        memory={directive: ceiling for directive, ceiling in by_memory.items() if ceiling is not None},
    )


def _partition(name: str) -> dict[str, str]:
    """The controller's fields of a partition; {} where it does not tell."""
    try:
        text = call(["scontrol", "show", "partition", "-o", name], limit=min(patience(), _PATIENCE))
    except EnvironmentFault:
        return {}
    return dict(word.split("=", 1) for word in text.split() if "=" in word)


def _of_qos(names: Iterable[str]) -> tuple[list[Ceiling | None], list[Ceiling | None]]:
    """The limits on time and on memory of these QOS."""
    wall: list[Ceiling | None] = []
    largest: list[Ceiling | None] = []
    for name in names:
        try:
            text = call(
                ["sacctmgr", "-nP", "show", "qos", name, "format=maxwall,maxtresperjob"],
                limit=min(patience(), _PATIENCE),
            )
        except EnvironmentFault:
            continue
        time, _, resources = text.strip().partition("|")
        wall.append(_ceiling(minutes(time), f"MaxWall={time} of QOS {name}"))
        asked = dict(word.split("=", 1) for word in resources.split(",") if "=" in word)
        largest.append(_ceiling(_bytes(asked.get("mem", "")), f"MaxTRESPerJob=mem={asked.get('mem')} of QOS {name}"))
    return wall, largest


def _largest(rows: Iterable[Mapping[str, str]], field: str, read: Callable[[str], int]) -> Ceiling | None:
    """The largest of several partitions' limits; None where any has none."""
    found = []
    for row in rows:
        value = read(row.get(field, ""))
        if not value:
            return None
        found.append(Ceiling(value=value, rule=f"{field}={row[field]} of partition {row.get('PartitionName', '')}"))
    return max(found, key=lambda ceiling: ceiling.value, default=None)


def _least(ceilings: Iterable[Ceiling | None]) -> Ceiling | None:
    return min((ceiling for ceiling in ceilings if ceiling), key=lambda ceiling: ceiling.value, default=None)


def _ceiling(value: int, rule: str) -> Ceiling | None:
    return Ceiling(value=value, rule=rule) if value else None


def _bytes(text: str) -> int:
    return memory(text) or 0
