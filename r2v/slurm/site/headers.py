"""The `#SBATCH` headers of the scripts: the single source of a job's resources.

    read(Path("scripts/slurm/03_train_policy.sh")).gpus               # 2
    read(Path("scripts/slurm/03_train_policy.sh"), job="preference")  # with the overrides of this job's lines:
                                                                      #     #R2V preference --time=24:00:00
                                                                      # helpers of a job have a line of their own:
                                                                      #     #R2V evaluate --helpers=15%8
    rewrite(scripts, {"partition": "batch", "gpu": "h100"})           # every header at once

sbatch ignores some mistakes silently (a directive after the first command, or an indented one): they are refused here
by file and line. Unknown options are left to sbatch, which is asked before anything is submitted.
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
    """The resources that one job requests: each directive by its long name without dashes, "" for a flag."""

    directives: dict[str, str] = field(default_factory=dict)
    helpers: str = ""
    """Its helper array (`r2v.slurm.job.helper_array`): "15%8" is 15 tasks, 8 at once; "" for none."""
    node_gpus: int = 0
    """GPUs of each node, if nodes are allocated whole and no directive requests GPUs."""
    sized_by: str = ""
    """The script whose header gives placement and size; the time limit is always the job's own script's."""

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
        """The number of helpers that run at the same time."""
        count, _, at_once = self.helpers.partition("%")
        return min(int(number) for number in (count or "0", at_once or count or "0"))

    @property
    def time_minutes(self) -> int:
        """The time limit in minutes, seconds rounded up; 0 for none or unlimited."""
        return minutes(self.directives.get("time", "0"))

    @property
    def gpu_hours(self) -> float:
        """Maximum GPU-hours within the time limit."""
        return self.gpus * self.time_minutes / 60

    def merged(self, values: Mapping[str, str]) -> Resources:
        """Return the resources with some directives replaced. Raises UsageError for a bad value."""
        for name, value in values.items():
            check(name, value, "")
        return replace(self, directives={**self.directives, **values})

    def sbatch_args(self) -> list[str]:
        """Return the directives as arguments of sbatch."""
        return [f"--{name}={value}" if value else f"--{name}" for name, value in self.directives.items()]


def read(path: Path, job: str = "") -> Resources:
    """Return a script's header for this job. Raises UsageError naming file and line, InputError without a script."""
    return parsed(path, printable(read_script(path)), job)


def parsed(path: Path, text: str, job: str = "") -> Resources:
    """Return the header in a script's text; `path` is for messages."""
    directives: dict[str, str] = {}
    ours: dict[str, str] = {}
    for line, target, words in _directives(path, text):
        options = _options(words, line, target)  # of every job: a mistake in one stops all
        if target in ("", ANY, job):
            ours |= {name: options.pop(name) for name in _OURS if name in options}
            directives |= options
    return Resources(directives=directives, helpers=ours.get(HELPERS, ""), node_gpus=int(ours.get(NODE_GPUS, 0)))


def options_of(path: Path, line: str) -> dict[str, str] | None:
    """Return the options in one line of a script; None if it is no directive."""
    for position, job, words in _directives(path, line):
        return _options(words, position, job)
    return None


def scripts(root: Path = Path()) -> list[Path]:
    """Return the scripts that have a header, in order, unreadable ones included: reading them raises the error."""
    return [path for path in sorted((root / SCRIPTS).glob("*.sh")) if _has_header(path)]


def _has_header(path: Path) -> bool:
    try:
        return re.search(r"^#SBATCH\b", read_script(path), re.M) is not None
    except InputError:  # reading it later reports the damage
        return True


def named_cluster(root: Path = Path()) -> str:
    """Return the first cluster that a header names, "" for none."""
    for path in sorted((root / SCRIPTS).glob("[0-9]*.sh")):
        with suppress(InputError):  # the command that needs the script reports it
            if named := _CLUSTERS.search(read_script(path)):
                return named[1]
    return ""


_CLUSTERS = re.compile(r"^#SBATCH\b.*\s(?:--clusters[= ]|-M\s*)([^\s#]+)", re.M)


def rewrite(paths: Iterable[Path], values: Mapping[str, str]) -> list[Path]:
    """Set directives in every header; returns the changed files. A key such as `evaluate.mem` is for that script alone.

    `gpu` is the type in gpu:<type>:<count>, keeping counts; `none` removes the GPUs. "" removes the type or any other
    directive. `cpu_partition` is for scripts that request no GPU. Nothing is written unless every header is valid
    before and after; only header lines change. Raises UsageError.
    """
    paths = list(paths)
    commands = {path: command_of(path.name) for path in paths}
    for name, value in values.items():
        scope, _, key = name.rpartition(".")
        if scope and scope not in commands.values():
            raise UsageError(f"cluster set {name}={value}: {nearest(scope, set(commands.values()))}")
        if key in _NAMED:
            if not re.fullmatch(r"[\w.,@+-]*", value) or (key.endswith("partition") and not value):
                raise UsageError(f"cluster set {key}={value}: must be a name of letters, digits and . , @ + -")
        elif not re.fullmatch(r"[a-z][a-z-]*", key) or not re.fullmatch(r"[^\s#'\"\\]*", value):
            raise UsageError(f"cluster set {key}={value}: must be a directive and one word, without quotes or #")
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
    # Written only now: a bad header in one script must leave the others unchanged.
    for path, text in changed.items():
        write_script(path, text)
    return list(changed)


def command_of(script: str) -> str:
    """Return a script's scope in keys of `r2v cluster set`: perturb of 02_perturb.sh."""
    return re.sub(r"^\d+_|\.sh$", "", script)


def lines(paths: Iterable[Path]) -> list[str]:
    """Return the lines of `r2v cluster show`: the main directives of each script."""
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
"""Keys of `r2v cluster set` that are accepted without asking sbatch."""


def _rewritten(text: str, resources: Resources, values: Mapping[str, str]) -> str:
    changes = {name: value for name, value in values.items() if name not in ("cpu_partition", "gpu")}
    if not resources.gpus or values.get("gpu") == "none":
        changes["partition"] = values.get("cpu_partition") or changes.get("partition", "")
        changes = {name: value for name, value in changes.items() if name != "partition" or value}
    head, tail = split(text)
    for name, value in changes.items():
        head = _with(head, name, value, present=name in resources.directives)
    if "gpu" in values:
        head = [_with_type(line, values["gpu"]) if line.startswith(("#SBATCH", "#R2V")) else line for line in head]
        head = [line for line in head if line.strip() != "#SBATCH"]
    return "".join(head + tail)


def split(text: str) -> tuple[list[str], list[str]]:
    """Return the lines in which sbatch looks for directives, and the rest."""
    lines = script_lines(text)
    # sbatch stops reading directives at the first command.
    commands = (at for at, line in enumerate(lines) if line.strip() and not line.removeprefix(BOM).startswith("#"))
    end = next(commands, len(lines))
    return lines[:end], lines[end:]


def _with(head: list[str], name: str, value: str, *, present: bool) -> list[str]:
    if not present:
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
    """Return a header line with this type of GPU, "" for any: gpu:a100:2, --gpus-per-node=a100:2; "none": no GPUs."""
    if kind == "none":
        return re.sub(r"\s--(gres=gpu\S*|gpus(-per-\w+)?=\S+)(?=\s)", "", line)
    typed = f"{kind}:" if kind else ""

    def in_list(match: re.Match[str]) -> str:
        return re.sub(
            r"\bgpu(?::[A-Za-z][\w.-]*)?(?::(\d+))?(?=,|$)", lambda item: f"gpu:{typed}{item[1] or 1}", match[0]
        )

    line = re.sub(r"(?<=--gres)(?:=|\s+)[^\s#]+", in_list, line)
    return re.sub(
        r"(--gpus(?:-per-\w+)?(?:=|\s+)|-G\s*)(?:[A-Za-z][\w.-]*:)?(\d+)",
        lambda item: f"{item[1]}{typed}{item[2]}",
        line,
    )


def _directives(path: Path, text: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (file:line, its job or "", words) of each line of directives."""
    head, tail = split(text)
    for number, line in enumerate(head + tail, start=1):
        position = f"{path}:{number}"
        directive = re.match(r"#SBATCH\s+(.*)|#R2V\s+(\w+)\s+(.*)", line)
        if number > len(head):
            if re.match(r"\s*#SBATCH\s", line):
                raise UsageError(
                    f"{position}: this directive follows the first command, where sbatch ignores it; move it up"
                )
        elif directive:
            yield position, directive[2] or "", _words(directive[1] or directive[3], position)
        elif re.match(r"#(SBATCH|R2V)", line):
            raise UsageError(f"{position}: {line.strip()}; written #SBATCH --name=value or #R2V <job> --name=value")


HELPERS, NODE_GPUS, ANY = "helpers", "node-gpus", "any"
_OURS = {
    HELPERS: (r"[1-9]\d{0,3}(%[1-9]\d{0,3})?", "--helpers=15%8: 15 helpers, of which 8 run at once"),
    NODE_GPUS: (r"\d{1,2}", "--node-gpus=4: each node has four, and is given whole"),
}
"""Options of #R2V lines that are R2V's own: pattern and example."""


def _options(words: Sequence[str], position: str, job: str) -> dict[str, str]:
    """Return the options of a line, sbatch's and R2V's own. Raises UsageError."""
    ours = [word for word in words if job and word.startswith(tuple(f"--{name}" for name in _OURS))]
    options = dict(pairs([word for word in words if word not in ours], position))
    for word in ours:
        name, _, value = word[2:].partition("=")
        form, written = _OURS.get(name, ("(?!)", next(iter(_OURS.values()))[1]))
        if not re.fullmatch(form, value):
            raise UsageError(f"{position}: {word}; written {written}")
        options[name] = value
    return options


def _words(text: str, position: str) -> list[str]:
    try:
        return shlex.split(re.sub(r"(^|\s)#.*", "", text))
    except ValueError as error:
        raise UsageError(f"{position}: {text}: {error}") from None
