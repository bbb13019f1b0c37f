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
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from r2v.errors import InputError, UsageError, nearest
from r2v.slurm.script_text import printable, read_script
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
    """How GPUs are asked for; empty: not at all, where nodes are given whole."""
    cpu_only: bool = False
    """Whether no job asks for a GPU, whatever its header says."""
    max_time: str = ""
    """The longest time limit; a stage that is cut off goes on from its checkpoint."""
    modules: tuple[str, ...] = ()
    """Lines of env.sh, such as `module load cuda/12.4`."""
    mail: str = ""
    """Address that Slurm writes to where a sentinel could not heal a failure."""
    webhook: str = ""
    """Environment variable with a URL that is told the same, as JSON."""
    kill_on_invalid_dep: bool = True
    """Whether a sentinel may be ended by --kill-on-invalid-dep; false: it starts after its stage, whatever that did."""
    submit_host: str = ""
    """Login node through which jobs of a chain speak to Slurm (ssh), where nodes may not; empty: nodes may."""
    arrays: bool = True
    """Whether jobs may be arrays, which helpers are."""
    max_gpu_hours: str = ""
    """GPU-hours that all chains of this checkout may use together; empty: no cap."""

    def directives(self, *, gpus: int) -> dict[str, str | None]:
        """What a job that asks for so many GPUs is given, and what is taken from it."""
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
        """What tells two profiles apart whose headers or env.sh differ."""
        kept = {name: asdict(self)[name] for name in _WRITTEN}
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:8]


_WRITTEN = ("all_jobs", "gpu_jobs", "cpu_jobs", "gpus", "cpu_only", "max_time", "modules", "arrays")
"""Fields that are written into the headers and env.sh."""
_MAPS = ("all_jobs", "gpu_jobs", "cpu_jobs", "sentinels")


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
    import yaml

    try:
        given = yaml.safe_load(printable(read_script(path))) or {}
        if not isinstance(given, dict):
            raise ValueError("wanted a map of settings")
        return _profile(given)
    except (OSError, ValueError, yaml.YAMLError, UsageError) as error:
        raise InputError(f"{path}: {' '.join(str(error).split())}") from None


def _profile(given: dict[str, Any]) -> SiteProfile:
    known = {entry.name: entry for entry in fields(SiteProfile)}
    base = shipped(str(given.get("base", NONE)))
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise UsageError(f"{name}: {nearest(name, known)}")
        default = getattr(SiteProfile(), name)
        if name in _MAPS:
            if not isinstance(value, dict):
                raise UsageError(f"{name}: wanted a map of directives, got {value!r}")
            values[name] = {**getattr(base, name), **{str(key): _text(of) for key, of in value.items()}}
        elif isinstance(default, tuple):
            values[name] = tuple(map(str, value if isinstance(value, list) else [value]))
        elif isinstance(default, bool) and not isinstance(value, bool):
            raise UsageError(f"{name}: wanted true or false, got {value!r}")
        else:
            values[name] = value if isinstance(default, bool) else str(value or "")
    return SiteProfile(**{**{name: getattr(base, name) for name in known}, **values})


def _text(value: object) -> str | None:
    """A directive's value as sbatch is given it: YAML reads 1:30:00 as a number of seconds, so times are quoted."""
    if isinstance(value, bool):
        return "" if value else None
    return None if value is None else str(value)
