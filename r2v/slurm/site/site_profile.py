"""The site profile: what a cluster wants of every job, in one YAML. The project's own is `scripts/slurm/site.yaml`.

    site = project_profile()                    # no site.yaml: nothing is added, nothing left out
    shipped("nersc").gpu_jobs                   # {"constraint": "gpu"}

A site.yaml names the shipped profile that it begins from (`base: nersc`) and says what differs: maps are merged key by
key, and a key whose value is empty takes that directive out. `r2v cluster set profile=nersc` writes one, and what it
says of directives and modules into the headers and `env.sh`; `r2v cluster set` alone does that again after an edit.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from r2v.config.yaml_text import Document, as_type, plain, read
from r2v.constraints import hints_of, shown
from r2v.errors import InputError, UsageError, nearest
from r2v.slurm.site.script_text import printable, read_script
from r2v.storage.paths import SCRIPTS

SHIPPED = Path(__file__).parent / "profiles"
"""The profiles that come with R2V."""
SITE = SCRIPTS / "site.yaml"
"""The project's own."""
NONE = "none"
"""The profile of a project without one."""


@dataclass(frozen=True, kw_only=True)
class SiteProfile:
    """One site. The maps hold directives by their long names; one without a value is a flag, one that is null is taken
    out of the headers."""

    base: str = NONE
    """The shipped profile that it begins from."""
    launch: str = ""
    """Words before the stage's Python, such as `apptainer exec --nv image.sif`; {root} is the checkout."""
    python: str = ""
    """The Python behind `launch`, with R2V in it; empty: the one that runs the job."""
    all_jobs: Mapping[str, str | None] = field(default_factory=dict)
    """Of every stage's job and every sentinel."""
    gpu_jobs: Mapping[str, str | None] = field(default_factory=dict)
    """Of jobs that ask for GPUs."""
    cpu_jobs: Mapping[str, str | None] = field(default_factory=dict)
    """Of jobs that ask for none, sentinels among them."""
    sentinels: Mapping[str, str | None] = field(default_factory=dict)
    """Of sentinels alone."""
    gpus: str = "gres=gpu:{kind}:{count}"
    """The directive for GPUs; empty: none, where nodes are given whole."""
    cpu_only: bool = False
    """True if no job asks for a GPU, whatever its header says."""
    max_time: str = ""
    """The longest time limit; a stage that is cut off goes on from its checkpoint."""
    modules: tuple[str, ...] = ()
    """Lines of env.sh, such as `module load cuda/12.4`."""
    mail: str = ""
    """Address that Slurm writes to where a sentinel could not heal a failure."""
    webhook: str = ""
    """Environment variable with a URL that is told the same, as JSON."""
    kill_on_invalid_dep: bool = True
    """True if a sentinel may be ended by --kill-on-invalid-dep; false: it starts after its stage, whatever that did."""
    submit_host: str = ""
    """Login node through which jobs of a chain speak to Slurm (ssh), where nodes may not; empty: nodes may."""
    arrays: bool = True
    """True if jobs may be arrays, which helpers are."""
    max_gpu_hours: str = ""
    """GPU-hours that all chains of this checkout may use together; empty: no cap."""

    def directives(self, *, gpus: int) -> dict[str, str | None]:
        """The directives that a job with so many GPUs is given, or loses (None)."""
        return {**self.all_jobs, **(self.gpu_jobs if gpus else self.cpu_jobs)}

    def spelled_gpus(self, kind: str, count: int) -> tuple[str, str] | None:
        """The directive, by name and value, for so many GPUs of a kind; None where none says it."""
        if not self.gpus or self.cpu_only:
            return None
        text = self.gpus.replace("{kind}:", f"{kind}:" if kind else "").replace("{count}", str(count))
        name, _, value = text.partition("=")
        return name, value

    def sentinel_directives(self, placement: Mapping[str, str]) -> dict[str, str]:
        """All that a sentinel asks for, where jobs without GPUs run at this placement."""
        small = {"ntasks": "1", "cpus-per-task": "1", "mem": "1G", "time": "5"}
        mail = {"mail-user": self.mail, "mail-type": "FAIL"} if self.mail else {}
        end = {"kill-on-invalid-dep": "yes"} if self.kill_on_invalid_dep else {}
        site = self.directives(gpus=0)
        out = {name: value for name, value in site.items() if value is None}
        merged = {**site, **placement, **small, **mail, **end, **out, **self.sentinels}
        return {name: value for name, value in merged.items() if value is not None}

    def stage_command(self, words: list[str], root: Path) -> list[str] | None:
        """The command line of a stage behind `launch`; None where it is started as it is."""
        if not self.launch:
            return None
        launch = shlex.split(self.launch.replace("{root}", str(root.resolve())))
        return [*launch, self.python or sys.executable, "-m", "r2v", *words]

    @property
    def mark(self) -> str:
        """The hash that tells two profiles apart whose headers or env.sh differ."""
        kept = {name: asdict(self)[name] for name in _WRITTEN}
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:8]


_WRITTEN = ("all_jobs", "gpu_jobs", "cpu_jobs", "gpus", "cpu_only", "max_time", "modules", "arrays")
"""Fields that are written into the headers and env.sh."""
_KINDS = {dict: "a map of directives", bool: "true or false", str: "text", tuple: "lines of text"}


def names() -> list[str]:
    """The shipped profiles; the commented template aside."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml") if path.stem != "template")


def shipped(name: str) -> SiteProfile:
    """A profile that comes with R2V. Raises UsageError with the nearest where there is none of this name."""
    if name == NONE:
        return SiteProfile()
    if name not in names():
        raise UsageError(f"no site profile {name}; {nearest(name, [*names(), NONE])}")
    return _read(SHIPPED / f"{name}.yaml")


def project_profile(root: Path = Path()) -> SiteProfile:
    """The project's own profile. Raises InputError, naming the file, where it cannot be one."""
    path = root / SITE
    return _read(path) if path.exists() else SiteProfile()


def _read(path: Path) -> SiteProfile:
    try:
        return _profile(read(printable(read_script(path)), path))
    except UsageError as error:
        raise InputError(str(error)) from None


def _profile(document: Document) -> SiteProfile:
    given, hints, defaults = document.mapping(), hints_of(SiteProfile), SiteProfile()
    base = _base(document, given)
    values: dict[str, Any] = {}
    for name, written in given.items():
        if name not in hints:
            document.refuse(nearest(name, hints), name)
        value, default = as_type(written, hints[name]), getattr(defaults, name)
        if isinstance(default, tuple):
            value = tuple(value) if isinstance(value, list) else (value,)
        elif isinstance(default, str) and value is None:
            value = ""
        texts = value if isinstance(value, tuple) else value.values() if isinstance(value, dict) else ()
        if not isinstance(value, type(default)) or not all(isinstance(text, str | None) for text in texts):
            document.refuse(f"must be {_KINDS[type(default)]}, got {shown(value)}", name)
        if isinstance(value, dict):
            value = {**getattr(base, name), **{str(key): _directive(item) for key, item in written.items()}}
        values[name] = value
    return replace(base, **values)


def _base(document: Document, given: dict[str, Any]) -> SiteProfile:
    try:
        return shipped(str(given.get("base", NONE)))
    except UsageError as error:
        document.refuse(str(error), "base")


def _directive(written: Any) -> str | None:
    """A directive's text as sbatch is given it; `true` makes a flag, and one without a value is taken out."""
    value = plain(written)
    if value is None or isinstance(value, bool):
        return "" if value else None
    return str(written)
