"""The directives of sbatch, read: names and values in a line of a header, and how the common ones are written.

sbatch is the judge of its options: one that it has newly, or that a site's plugin adds (--container-image of pyxis),
is passed on as it stands, and one that it lacks is refused in its own words, before anything is submitted. Only values
that are calculated with are looked at here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from r2v.errors import UsageError

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
    "nodes": (re.compile(r"[1-9]\d*[KkMm]?([-,:][\d,:-]+)?"), "a number, or smallest-largest"),
    "ntasks": (re.compile(r"[1-9]\d*"), "a number"),
    "gres": (re.compile(r"[A-Za-z]\w*(:[\w.-]+)*(,[A-Za-z]\w*(:[\w.-]+)*)*"), "such as gpu:a100:2"),
}
"""Values that are calculated with."""
_NOT_OURS = {
    "array": "the tasks of one stage would end one another as submitted twice; for helpers: #R2V --helpers=15%8"
}
"""Options that no header may have, and why."""
_NO_LIMIT = {"UNLIMITED", "INFINITE"}


def pairs(words: Sequence[str], place: str) -> Iterator[tuple[str, str]]:
    """(long name, value) of the options in a line of directives. Raises UsageError naming `place`, file:line."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if match := re.fullmatch(r"--([A-Za-z][\w-]*)(?:(=)(.*))?", word, re.S):
            name, given, value = match[1], match[2], match[3] or ""
        elif re.match(r"-[A-Za-z]", word) and word[1] in SHORT:
            name, value = SHORT[word[1]], word[2:]
            given = value
        else:
            raise UsageError(f"{place}: {word} is no sbatch option; written --name=value")
        if not given and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        check(name, value, f"{place}: ")
        if name in _NOT_OURS:
            raise UsageError(f"{place}: --{name}={value}: {_NOT_OURS[name]}")
        yield name, value


def check(name: str, value: str, place: str) -> None:
    """Raises UsageError, `place` in front, where a directive that is calculated with cannot have this value."""
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


def node_count(text: str) -> int:
    """The fewest nodes of a --nodes: 2 in "2", "2-4" and "2,4"."""
    match = re.match(r"\d+", text)
    return int(match[0]) if match else 1


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


def error_file(directives: Mapping[str, str], name: str, id_: str) -> str:
    """The file to which a job of this name writes its errors, if its header gives them one of their own (`--error`); ""
    where they are in its log, or the pattern is one that only Slurm can fill in."""
    pattern = directives.get("error", "")
    filled = pattern.replace("%x", name).replace("%j", id_).replace("%A", id_)
    return "" if "%" in filled else filled
