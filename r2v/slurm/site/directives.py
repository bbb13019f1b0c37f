"""The directives of sbatch: parser of a header's line, and checks of the values that R2V computes with.

sbatch judges its options: new ones and those of a site's plugin (--container-image of pyxis) are passed on unchanged,
and unknown ones are refused in sbatch's own words before anything is submitted.
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
"""Long names by their letters."""

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
"""Pattern and description of the values that R2V computes with."""
_NOT_OURS = {
    "array": "the tasks of one stage would end one another as submitted twice; for helpers: #R2V --helpers=15%8"
}
"""Options that no header may have, with the reason."""
_NO_LIMIT = {"UNLIMITED", "INFINITE"}


def pairs(words: Sequence[str], position: str) -> Iterator[tuple[str, str]]:
    """Yield (long name, value) of a line's options. Raises UsageError naming `position`, file:line."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if match := re.fullmatch(r"--([A-Za-z][\w-]*)(?:(=)(.*))?", word, re.S):
            name, given, value = match[1], match[2], match[3] or ""
        elif re.match(r"-[A-Za-z]", word) and word[1] in SHORT:
            name, value = SHORT[word[1]], word[2:]
            given = value
        else:
            raise UsageError(f"{position}: {word} is no sbatch option; written --name=value")
        if not given and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        check(name, value, f"{position}: ")
        if name in _NOT_OURS:
            raise UsageError(f"{position}: --{name}={value}: {_NOT_OURS[name]}")
        yield name, value


def check(name: str, value: str, prefix: str) -> None:
    """Raise UsageError, beginning with `prefix`, if a directive cannot have this value."""
    pattern, form = _FORMS.get(name, (None, ""))
    if pattern is not None and not pattern.fullmatch(value) and not (name == "time" and value in _NO_LIMIT):
        raise UsageError(f"{prefix}--{name}={value}: wanted {form}")


def minutes(text: str) -> int:
    """Return a time limit in minutes, seconds rounded up; 0 for an unlimited one.

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
    """Return the minimum number of nodes of --nodes: 2 in "2", "2-4" and "2,4"."""
    match = re.match(r"\d+", text)
    return int(match[0]) if match else 1


def gpu_count(gres: str) -> int:
    """Return the number of GPUs in a list of generic resources: 2 in gpu:a100:2,shard:1; 1 in gpu:a100."""
    total = 0
    for item in gres.split(","):
        kind, *rest = item.split("(")[0].split(":")
        if kind == "gpu":
            total += int(rest[-1]) if rest and rest[-1].isdigit() else 1
    return total


def gpu_kind(directives: Mapping[str, str]) -> str:
    """Return the requested type of GPU: a100 in gpu:a100:2; "" for any."""
    for item in directives.get("gres", "").split(","):
        name, *rest = item.split(":")
        if name == "gpu" and rest and not rest[0].isdigit():
            return rest[0]
    counted = next((directives[name] for name in ("gpus", "gpus-per-node", "gpus-per-task") if name in directives), "")
    return counted.partition(":")[0] if ":" in counted else ""


def error_file(directives: Mapping[str, str], name: str, id_: str) -> str:
    """Return a job's error file (`--error`); "" if errors go to its log, or only Slurm can fill in the pattern."""
    pattern = directives.get("error", "")
    filled = pattern.replace("%x", name).replace("%j", id_).replace("%A", id_)
    return "" if "%" in filled else filled
