"""The directives of sbatch: which options there are, which take a value, and how the common ones are written.

The table is that of sbatch 22.05 with the options that 23.02 to 24.11 added (sbatch(1)). An option that a site's
plugin adds is not known here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from r2v.errors import UsageError, nearest

_NAMES = """
account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment constraint container
container-id core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency
distribution error exclude export export-file extra extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node
gpus-per-socket gpus-per-task gres gres-flags hint input job-name kill-on-invalid-dep licenses mail-type mail-user
mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nodefile nodelist nodes ntasks ntasks-per-core
ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode output partition power prefer priority profile qos
reservation resv-ports segment signal sockets-per-node switches thread-spec threads-per-core time time-min tmp
tres-bind tres-per-task uid wait-all-nodes wckey
"""
_VALUED = frozenset(_NAMES.split())
_FLAGS = frozenset(
    (
        "contiguous",
        "hold",
        "ignore-pbs",
        "no-requeue",
        "overcommit",
        "parsable",
        "quiet",
        "reboot",
        "requeue",
        "spread-job",
        "stepmgr",
        "test-only",
        "use-min-nodes",
        "verbose",
        "wait",
    )
)
_EITHER = frozenset(("exclusive", "get-user-env", "nice", "no-kill", "oom-kill-step", "oversubscribe", "propagate"))
"""Options whose value may be left out."""
_OPTIONS = _VALUED | _FLAGS | _EITHER
SHORT = {
    "A": "account",
    "a": "array",
    "b": "begin",
    "C": "constraint",
    "c": "cpus-per-task",
    "D": "chdir",
    "d": "dependency",
    "e": "error",
    "F": "nodefile",
    "G": "gpus",
    "H": "hold",
    "i": "input",
    "J": "job-name",
    "k": "no-kill",
    "L": "licenses",
    "M": "clusters",
    "m": "distribution",
    "N": "nodes",
    "n": "ntasks",
    "O": "overcommit",
    "o": "output",
    "p": "partition",
    "Q": "quiet",
    "q": "qos",
    "S": "core-spec",
    "s": "oversubscribe",
    "t": "time",
    "v": "verbose",
    "W": "wait",
    "w": "nodelist",
    "x": "exclude",
}
"""One letter, and the long name it stands for."""

_TIME = re.compile(
    r"(?:(?P<days>\d+)-(?P<h>\d+)(?::(?P<hm>\d+)(?::(?P<hms>\d+))?)?|(?P<a>\d+)(?::(?P<b>\d+)"
    r"(?::(?P<c>\d+))?)?)"
)
_FORMS = {
    "time": (_TIME, "minutes, hours:minutes:seconds, or days-hours:minutes:seconds"),
    "time-min": (_TIME, "a time like that of --time"),
    "mem": (re.compile(r"\d+[KMGT]?B?", re.I), "a number with K, M, G or T, such as 64G"),
    "mem-per-cpu": (re.compile(r"\d+[KMGT]?B?", re.I), "a number with K, M, G or T, such as 4G"),
    "cpus-per-task": (re.compile(r"[1-9]\d*"), "a number"),
    "nodes": (re.compile(r"[1-9]\d*(-[1-9]\d*)?"), "a number, or smallest-largest"),
    "ntasks": (re.compile(r"[1-9]\d*"), "a number"),
    "gres": (re.compile(r"[A-Za-z]\w*(:[\w.-]+)*(,[A-Za-z]\w*(:[\w.-]+)*)*"), "such as gpu:a100:2"),
    "signal": (re.compile(r"([BR]+:)?(\w+)(@\d+)?"), "such as B:USR2@120"),
    "open-mode": (re.compile(r"append|truncate"), "append or truncate"),
}
"""Values checked before sbatch sees them: what an accident of typing breaks most often."""

_NO_LIMIT = {"UNLIMITED", "INFINITE"}


def pairs(words: Sequence[str], place: str) -> Iterator[tuple[str, str]]:
    """(long name, value) of the options in a line of directives. Raises UsageError naming `place`, file:line."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--"):
            name, given, value = word[2:].partition("=")
        elif re.match(r"-[A-Za-z]", word) and word[1] in SHORT:
            name, value = SHORT[word[1]], word[2:]
            given = value
        else:
            raise UsageError(f"{place}: {word} is no sbatch option; written --name=value")
        if not given and name in _VALUED and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        check(name, value, f"{place}: ")
        yield name, value


def check(name: str, value: str, place: str) -> None:
    """Raises UsageError, `place` in front, where there is no such option or it cannot have this value."""
    if name not in _OPTIONS:
        raise UsageError(f"{place}sbatch has no option --{name}; {nearest(name, _OPTIONS)}")
    if name in _VALUED and not value:
        raise UsageError(f"{place}--{name} wants a value, --{name}=...")
    if name in _FLAGS and value:
        raise UsageError(f"{place}--{name}={value}: --{name} takes no value")
    pattern, form = _FORMS.get(name, (None, ""))
    if pattern is not None and not pattern.fullmatch(value) and not (name == "time" and value in _NO_LIMIT):
        raise UsageError(f"{place}--{name}={value}: wanted {form}")


def minutes(text: str) -> int:
    """A time limit in minutes, seconds rounded up; 0 for an unlimited one.

    >>> minutes("1-12:30"), minutes("24:00:00"), minutes("0:30"), minutes("90")
    (2190, 1440, 1, 90)
    """
    match = _TIME.fullmatch(text)
    if match is None:
        return 0
    if match["days"] is not None:
        days, hours, mins, secs = (int(match[name] or 0) for name in ("days", "h", "hm", "hms"))
    else:
        parts = [int(match[name]) for name in "abc" if match[name] is not None]
        days, (hours, mins, secs) = 0, (parts if len(parts) == 3 else [0, *parts, 0][:3])
    return days * 1440 + hours * 60 + mins + (secs > 0)


def gpu_count(gres: str) -> int:
    """GPUs in a list of generic resources: 2 in gpu:a100:2,shard:1; 1 in gpu:a100."""
    total = 0
    for one in gres.split(","):
        kind, *rest = one.split("(")[0].split(":")
        if kind == "gpu":
            total += int(rest[-1]) if rest and rest[-1].isdigit() else 1
    return total


def gpu_kind(directives: Mapping[str, str]) -> str:
    """The type of GPU that is asked for: a100 in gpu:a100:2; "" for any."""
    for one in directives.get("gres", "").split(","):
        name, *rest = one.split(":")
        if name == "gpu" and rest and not rest[0].isdigit():
            return rest[0]
    counted = next((directives[name] for name in ("gpus", "gpus-per-node", "gpus-per-task") if name in directives), "")
    return counted.partition(":")[0] if ":" in counted else ""
