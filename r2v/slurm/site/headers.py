"""The `#SBATCH` headers of the scripts: the only place that says what a job asks Slurm for.

    read(Path("scripts/slurm/03_train_policy.sh")).gpus               # 2
    read(Path("scripts/slurm/03_train_policy.sh"), job="preference")  # the same but where a line says otherwise:
                                                                      #     #R2V preference --time=24:00:00
                                                                      # and of helpers beside a job, a line says
                                                                      #     #R2V evaluate --helpers=15%8
    rewrite(scripts, {"partition": "batch", "gpu": "h100"})           # every header at once

sbatch passes over some mistakes in silence (a directive behind the first command, or an indented one): they are
refused here by file and line. Which options there are, sbatch itself tells, before anything is submitted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from r2v.console import text_table
from r2v.errors import InputError, UsageError, nearest
from r2v.slurm.site.directives import SHORT, check, gpu_count, minutes, node_count, pairs
from r2v.slurm.site.script_text import BOM, printable, read_script, script_lines, write_script
from r2v.storage.paths import SCRIPTS


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The resources that one job asks Slurm for: each directive by its long name without dashes, "" for a flag."""

    directives: dict[str, str] = field(default_factory=dict)
    helpers: str = ""
    """The array of helpers beside it (`r2v.slurm.job.helper_array`): "15%8", 15 of which 8 at once; "" for none."""
    node_gpus: int = 0
    """GPUs of each node, where nodes are given whole and no directive asks for GPUs."""
    sized_by: str = ""
    """The script whose header says where the job runs and in which size; its time stands in its own script."""

    @property
    def gpus(self) -> int:
        """GPUs of the whole job, from --gpus, or --gres, --gpus-per-node, --gpus-per-task."""
        if "gpus" in self.directives:
            return gpu_count(f"gpu:{self.directives['gpus']}")
        nodes = node_count(self.directives.get("nodes", ""))
        for name, times in (("gpus-per-node", nodes), ("gpus-per-task", int(self.directives.get("ntasks", "1")))):
            if name in self.directives:
                return times * gpu_count(f"gpu:{self.directives[name]}")
        return nodes * (gpu_count(self.directives.get("gres", "")) or self.node_gpus)

    @property
    def helpers_at_once(self) -> int:
        """Of the helpers, those that play at the same time."""
        count, _, at_once = self.helpers.partition("%")
        return min(int(number) for number in (count or "0", at_once or count or "0"))

    @property
    def time_minutes(self) -> int:
        """The time limit, seconds rounded up; 0 where none is named or it is unlimited."""
        return minutes(self.directives.get("time", "0"))

    @property
    def gpu_hours(self) -> float:
        """GPU-hours that it may use within its time limit."""
        return self.gpus * self.time_minutes / 60

    def merged(self, values: Mapping[str, str]) -> Resources:
        """These with other values for some directives. Raises UsageError for a bad value."""
        for name, value in values.items():
            check(name, value, "")
        return replace(self, directives={**self.directives, **values})

    def sbatch_args(self) -> list[str]:
        """The same as arguments of sbatch."""
        return [f"--{name}={value}" if value else f"--{name}" for name, value in self.directives.items()]


def read(path: Path, job: str = "") -> Resources:
    """The header of a script, as it stands for this job. Raises UsageError naming file and line where a
    directive cannot be, InputError where there is no such script."""
    return parsed(path, printable(read_script(path)), job)


def parsed(path: Path, text: str, job: str = "") -> Resources:
    """The header in a script's text; its `path` is for messages."""
    directives: dict[str, str] = {}
    ours: dict[str, str] = {}
    for line, target, words in _directives(path, text):
        options = _options(words, line, target)  # of every job: a mistake is found whoever asks
        if target in ("", ANY, job):
            ours |= {name: options.pop(name) for name in _OURS if name in options}
            directives |= options
    return Resources(directives=directives, helpers=ours.get(HELPERS, ""), node_gpus=int(ours.get(NODE_GPUS, 0)))


def options_of(path: Path, line: str) -> dict[str, str] | None:
    """The options in one line of a script; None for a line that is no directive."""
    found = list(_directives(path, line))
    return _options(found[0][2], found[0][0], found[0][1]) if found else None


def scripts(root: Path = Path()) -> list[Path]:
    """The scripts that have a header, in order. One that cannot be read is among them, for whoever reads it to say."""
    return [path for path in sorted((root / SCRIPTS).glob("*.sh")) if _has_header(path)]


def _has_header(path: Path) -> bool:
    try:
        return re.search(r"^#SBATCH\b", read_script(path), re.M) is not None
    except InputError:
        return True


def named_cluster(root: Path = Path()) -> str:
    """The first cluster that a header names, "" for none; scripts that cannot be read name none."""
    for path in sorted((root / SCRIPTS).glob("[0-9]*.sh")):
        with suppress(InputError):
            if named := _CLUSTERS.search(read_script(path)):
                return named[1]
    return ""


_CLUSTERS = re.compile(r"^#SBATCH\b.*\s(?:--clusters[= ]|-M\s*)([^\s#]+)", re.M)


def rewrite(paths: Iterable[Path], values: Mapping[str, str]) -> list[Path]:
    """Set directives in every header; returns the files that changed. A key `evaluate.mem` is for that script alone.

    `gpu` is the type in gpu:<type>:<count>, counts stay, and `none` takes the GPUs out; "" takes the type, or any other
    directive, out. `cpu_partition` is for the scripts that ask for no GPU. Nothing is written unless every header can
    be read before and after; nothing but header lines changes. Raises UsageError.
    """
    paths = list(paths)
    commands = {path: command_of(path.name) for path in paths}
    for name, value in values.items():
        scope, _, key = name.rpartition(".")
        if scope and scope not in commands.values():
            raise UsageError(f"cluster set {name}={value}: {nearest(scope, set(commands.values()))}")
        _check_setting(key, value)
    changed = {}
    for path in paths:
        mine = {
            key: value
            for name, value in values.items()
            for scope, _, key in [name.rpartition(".")]
            if scope in ("", commands[path])
        }
        before, resources = read_script(path), read(path)
        after = _rewritten(before, resources, mine)
        for line, job, words in _directives(path, after):
            _options(words, line, job)
        if after != before:
            changed[path] = after
    for path, text in changed.items():
        write_script(path, text)
    return list(changed)


def command_of(script: str) -> str:
    """The word before the dot in a key of `r2v cluster set` for this script alone: perturb of 02_perturb.sh."""
    return re.sub(r"^\d+_|\.sh$", "", script)


def _check_setting(key: str, value: str) -> None:
    if key in _NAMED:
        if not re.fullmatch(r"[\w.,@+-]*", value) or (key.endswith("partition") and not value):
            raise UsageError(f"cluster set {key}={value}: must be a name of letters, digits and . , @ + -")
    elif not re.fullmatch(r"[a-z][a-z-]*", key) or not re.fullmatch(r"[^\s#'\"\\]*", value):
        raise UsageError(f"cluster set {key}={value}: must be a directive and one word, without quotes or #")


def lines(paths: Iterable[Path]) -> list[str]:
    """The lines of `r2v cluster show`: the most important directives of each script."""
    columns = ("partition", "account", "qos", "gres", "cpus-per-task", "mem", "time")
    headers = [(path.name, read(path)) for path in paths]
    rows = [(name, *(resources.directives.get(key, "") for key in columns)) for name, resources in headers]
    return text_table([("script", *columns), *rows]).splitlines()


_NAMED = ("partition", "cpu_partition", "account", "gpu", "qos")
SETTABLE = (
    *_NAMED,
    *("clusters", "comment", "constraint", "cpus-per-task", "exclude", "gpus-per-node", "gres", "licenses"),
    *("mail-type", "mail-user", "mem", "mem-per-cpu", "nodes", "ntasks", "reservation", "signal", "time", "wckey"),
)
"""Keys of `r2v cluster set` that need no word of sbatch's; others are set where it knows them."""


def _rewritten(text: str, resources: Resources, values: Mapping[str, str]) -> str:
    changes = {name: value for name, value in values.items() if name not in ("cpu_partition", "gpu")}
    if not resources.gpus or values.get("gpu") == "none":
        changes["partition"] = values.get("cpu_partition") or changes.get("partition", "")
        changes = {name: value for name, value in changes.items() if name != "partition" or value}
    head, tail = split(text)
    for name, value in changes.items():
        head = _with(head, name, value, known=name in resources.directives)
    if "gpu" in values:
        head = [_with_type(line, values["gpu"]) if line.startswith(("#SBATCH", "#R2V")) else line for line in head]
        head = [line for line in head if line.strip() != "#SBATCH"]
    return "".join(head + tail)


def split(text: str) -> tuple[list[str], list[str]]:
    """The lines in which sbatch looks for directives, and the rest."""
    lines = script_lines(text)
    commands = (at for at, line in enumerate(lines) if line.strip() and not line.removeprefix(BOM).startswith("#"))
    end = next(commands, len(lines))
    return lines[:end], lines[end:]


def _with(head: list[str], name: str, value: str, *, known: bool) -> list[str]:
    if not known:
        last = max((at for at, line in enumerate(head) if line.startswith("#SBATCH")), default=0)
        return [*head[: last + 1], f"#SBATCH --{name}={value}\n", *head[last + 1 :]] if value else head
    short = "".join(rf"|-{letter}\s*" for letter, long in SHORT.items() if long == name)
    spelled = re.compile(rf"(?<=\s)(?:--{name}(?:=|\s+){short})[^\s#]+")
    lines = [
        spelled.sub(f"--{name}={value}" if value else "", line) if line.startswith(("#SBATCH", "#R2V")) else line
        for line in head
    ]
    return [line for line in lines if line.partition("#SBATCH")[2].strip() or not line.startswith("#SBATCH")]


def _with_type(line: str, kind: str) -> str:
    """A header line with this type of GPU, or with any: gpu:a100:2, --gpus-per-node=a100:2; "none": without GPUs."""
    if kind == "none":
        return re.sub(r"\s--(gres=gpu\S*|gpus(-per-\w+)?=\S+)(?=\s)", "", line)
    typed = f"{kind}:" if kind else ""

    def in_list(match: re.Match[str]) -> str:
        return re.sub(
            r"\bgpu(?::[A-Za-z][\w.-]*)?(?::(\d+))?(?=,|$)", lambda one: f"gpu:{typed}{one[1] or 1}", match[0]
        )

    line = re.sub(r"(?<=--gres)(?:=|\s+)[^\s#]+", in_list, line)
    return re.sub(
        r"(--gpus(?:-per-\w+)?(?:=|\s+)|-G\s*)(?:[A-Za-z][\w.-]*:)?(\d+)", lambda one: f"{one[1]}{typed}{one[2]}", line
    )


def _directives(path: Path, text: str) -> Iterator[tuple[str, str, list[str]]]:
    """(file:line, job it is for or "", words) of each line of directives."""
    head, tail = split(text)
    for number, line in enumerate(head + tail, start=1):
        place = f"{path}:{number}"
        directive = re.match(r"#SBATCH\s+(.*)|#R2V\s+(\w+)\s+(.*)", line)
        if number > len(head):
            if re.match(r"\s*#SBATCH\s", line):
                raise UsageError(
                    f"{place}: this directive stands behind the first command, where sbatch passes over it; move it up"
                )
        elif directive:
            yield place, directive[2] or "", _words(directive[1] or directive[3], place)
        elif re.match(r"#(SBATCH|R2V)", line):
            raise UsageError(f"{place}: {line.strip()}; written #SBATCH --name=value or #R2V <job> --name=value")


HELPERS, NODE_GPUS, ANY = "helpers", "node-gpus", "any"
_OURS = {
    HELPERS: (r"[1-9]\d{0,3}(%[1-9]\d{0,3})?", "--helpers=15%8: 15 helpers, of which 8 run at once"),
    NODE_GPUS: (r"\d{1,2}", "--node-gpus=4: each node has four, and is given whole"),
}
"""Options of #R2V lines that are not sbatch's: their form, and how they are written."""


def _options(words: Sequence[str], place: str, job: str) -> dict[str, str]:
    """The options of a line, those among them that are ours and not sbatch's. Raises UsageError."""
    ours = [word for word in words if job and word.startswith(tuple(f"--{name}" for name in _OURS))]
    options = dict(pairs([word for word in words if word not in ours], place))
    for word in ours:
        name, _, value = word[2:].partition("=")
        form, written = _OURS.get(name, ("(?!)", next(iter(_OURS.values()))[1]))
        if not re.fullmatch(form, value):
            raise UsageError(f"{place}: {word}; written {written}")
        options[name] = value
    return options


def _words(text: str, place: str) -> list[str]:
    try:
        return shlex.split(re.sub(r"(^|\s)#.*", "", text))
    except ValueError as error:
        raise UsageError(f"{place}: {text}: {error}") from None
