"""The site profile: a cluster's requirements of every job, in one YAML. The project's is `scripts/slurm/site.yaml`.

    site = project_profile()                    # without a site.yaml: nothing added, nothing removed
    shipped("nersc").gpu_jobs                   # {"constraint": "gpu"}

A site.yaml names its shipped base (`base: nersc`) and the differences: maps are merged key by key, and a key without a
value removes that directive. `r2v cluster set profile=nersc` writes one, and its directives and modules into the
headers and `env.sh`; `r2v cluster set` alone does so again after an edit.
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
"""The project's own profile."""
NONE = "none"
"""The profile of a project without one."""


@dataclass(frozen=True, kw_only=True)
class SiteProfile:
    """The settings of one site. Maps hold directives by long name; "" is a flag, None removes it from the headers."""

    base: str = NONE
    """The shipped profile that it extends."""
    launch: str = ""
    """Words before the stage's Python, such as `apptainer exec --nv image.sif`; {root} is the checkout."""
    python: str = ""
    """The Python after `launch`, with R2V installed; empty: the one that runs the job."""
    all_jobs: Mapping[str, str | None] = field(default_factory=dict)
    """Directives of every stage's job and every sentinel."""
    gpu_jobs: Mapping[str, str | None] = field(default_factory=dict)
    """Directives of jobs with GPUs."""
    cpu_jobs: Mapping[str, str | None] = field(default_factory=dict)
    """Directives of jobs without GPUs, sentinels included."""
    sentinels: Mapping[str, str | None] = field(default_factory=dict)
    """Directives of sentinels alone."""
    gpus: str = "gres=gpu:{kind}:{count}"
    """The directive for GPUs; empty: none, for sites that allocate whole nodes."""
    cpu_only: bool = False
    """True if no job requests a GPU, even if its header does."""
    max_time: str = ""
    """The longest time limit; an interrupted stage resumes from its checkpoint."""
    modules: tuple[str, ...] = ()
    """Lines of env.sh, such as `module load cuda/12.4`."""
    mail: str = ""
    """Address to which Slurm writes when a sentinel could not heal a failure."""
    webhook: str = ""
    """Environment variable with a URL that gets the same report as JSON."""
    kill_on_invalid_dep: bool = True
    """True if --kill-on-invalid-dep may remove a sentinel; false: it starts after its stages in any case."""
    submit_host: str = ""
    """Login node through which jobs call Slurm by ssh, if compute nodes may not; empty: they may."""
    arrays: bool = True
    """True if job arrays are allowed, which helpers need."""
    max_gpu_hours: str = ""
    """GPU-hours that all chains of this checkout may use together; empty: no cap."""

    def directives(self, *, gpus: int) -> dict[str, str | None]:
        """Return the directives set for a job with so many GPUs; None removes one."""
        return {**self.all_jobs, **(self.gpu_jobs if gpus else self.cpu_jobs)}

    def spelled_gpus(self, kind: str, count: int) -> tuple[str, str] | None:
        """Return name and value of the directive for so many GPUs of a kind; None if the site uses none."""
        if not self.gpus or self.cpu_only:
            return None
        text = self.gpus.replace("{kind}:", f"{kind}:" if kind else "").replace("{count}", str(count))
        name, _, value = text.partition("=")
        return name, value

    def sentinel_directives(self, placement: Mapping[str, str]) -> dict[str, str]:
        """Return a sentinel's directives, given the placement of jobs without GPUs."""
        small = {"ntasks": "1", "cpus-per-task": "1", "mem": "1G", "time": "5"}
        mail = {"mail-user": self.mail, "mail-type": "FAIL"} if self.mail else {}
        end = {"kill-on-invalid-dep": "yes"} if self.kill_on_invalid_dep else {}
        site = self.directives(gpus=0)
        out = {name: value for name, value in site.items() if value is None}
        merged = {**site, **placement, **small, **mail, **end, **out, **self.sentinels}
        return {name: value for name, value in merged.items() if value is not None}

    def stage_command(self, words: list[str], root: Path) -> list[str] | None:
        """Return the command line of a stage under `launch`; None without a launcher."""
        if not self.launch:
            return None
        launch = shlex.split(self.launch.replace("{root}", str(root.resolve())))
        return [*launch, self.python or sys.executable, "-m", "r2v", *words]

    @property
    def mark(self) -> str:
        """Hash of the fields that are written into headers and env.sh."""
        fields = {name: asdict(self)[name] for name in _WRITTEN}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:8]


_WRITTEN = ("all_jobs", "gpu_jobs", "cpu_jobs", "gpus", "cpu_only", "max_time", "modules", "arrays")
"""Fields that are written into the headers and env.sh."""
_KINDS = {dict: "a map of directives", bool: "true or false", str: "text", tuple: "lines of text"}


def names() -> list[str]:
    """Return the names of the shipped profiles, without the commented template."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml") if path.stem != "template")


def shipped(name: str) -> SiteProfile:
    """Return a shipped profile. Raises UsageError with the nearest name for an unknown one."""
    if name == NONE:
        return SiteProfile()
    if name not in names():
        raise UsageError(f"no site profile {name}; {nearest(name, [*names(), NONE])}")
    return _read(SHIPPED / f"{name}.yaml")


def project_profile(root: Path = Path()) -> SiteProfile:
    """Return the project's profile. Raises InputError naming the file if it is invalid."""
    path = root / SITE
    return _read(path) if path.exists() else SiteProfile()


def _read(path: Path) -> SiteProfile:
    try:
        return _profile(read(printable(read_script(path)), path))
    except UsageError as error:
        raise InputError(str(error)) from None


def _profile(document: Document) -> SiteProfile:
    given, hints, defaults = document.mapping(), hints_of(SiteProfile), SiteProfile()
    try:
        base = shipped(str(given.get("base", NONE)))
    except UsageError as error:
        document.refuse(str(error), "base")
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


def _directive(written: Any) -> str | None:
    """Return a directive's text for sbatch: `true` is a flag (""), no value or `false` removes it (None)."""
    value = plain(written)
    if value is None or isinstance(value, bool):
        return "" if value else None
    return str(written)
