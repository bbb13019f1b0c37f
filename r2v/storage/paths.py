"""Paths: every path that the pipeline reads or writes.

    places = Places(benchmark="desk", condition="noisy", prefix="mrp")
    places.published("outputs/{prefix}thing/{pipeline}")              # outputs/mrp/thing

A published path is a symbolic link to the newest attempt in `outputs/.artifacts/`; runs of collected data lie under
`data/runs/`, independent of the prefix. Folder names of a custom benchmark, `package.module:Class`, have a dot for the
colon: rsync and tar read a host before a colon, PATH is split at it, and NTFS forbids it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOMS = ("data", "outputs", "results")
"""Folders of a checkout below which results are published."""
ARTIFACTS = Path("outputs/.artifacts")
EPISODES = Path("outputs/.episodes")
"""Played episodes of all attempts, one folder per attempt."""
RUNS = Path("data/runs")
BENCHMARK_COUNTS = Path("outputs/.benchmarks")
"""Task counts of custom benchmarks, one file per content of a module and its options."""
CHAINS = Path("outputs/.chains")
LOCAL_RUNS = Path("outputs/.runs")
"""State and logs of runs outside Slurm, one folder per pipeline."""
SNAPSHOTS = Path("outputs/.snapshots")
"""Code and configuration of Slurm jobs as submitted, one folder per content."""
SITE_LEASES = Path("outputs/.sites")
"""Leases of site sets."""
MEASURED = Path("outputs/.measured")
"""Memory measurements of models, one file per content."""
ENGINES = Path("outputs/.engines")
"""Addresses of teachers served by Slurm jobs, one folder each."""
SERVERS = Path("data/served")
"""Servers, each a folder with its accounts, log and recorded sessions."""
TRAFFIC = "traffic.jsonl"
"""Log of a server."""
SESSIONS = "sessions"
"""Recorded sessions of a server."""
REPLIES = Path("outputs/.replies")
"""Registry of the journals of paid provider requests, one file per journal."""
GAME_JOBS = Path("results/batch_jobs")
"""Batch jobs of the Secret Game."""
EXPERIMENTS = Path("outputs/experiments")
"""Experiments, one folder <name>_<time> each."""
LOGS = Path("logs")
"""Output of Slurm jobs."""
BACKGROUND = Path("logs/background")
"""Output of runs in the background, one folder <name>_<time> each."""
SCRIPTS = Path("scripts/slurm")
"""Sbatch scripts."""
CONFIGS = Path("configs")
"""Configurations, <benchmark>/<condition>.yaml."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Paths of one pipeline's outputs. `root`: the checkout. With a prefix, a folder of that name below data/, outputs/
    and results/ replaces the folder <benchmark>_<condition>."""

    benchmark: str
    condition: str
    prefix: str = ""
    root: Path = Path()

    def published(self, template: str) -> Path:
        """Return the path of a template of the stage table, with {benchmark}, {pipeline} (<benchmark>_<condition>) and
        {prefix} filled in."""
        if self.prefix:
            values = {"prefix": f"{self.prefix}/", "pipeline": "", "benchmark": self.prefix}
        else:
            values = {"prefix": "", "pipeline": self.name, "benchmark": self._folder_name}
        return self.root / template.format(**values).rstrip("/")

    @property
    def name(self) -> str:
        """Name of this pipeline's chain of Slurm jobs."""
        return self.prefix or f"{self._folder_name}_{self.condition}"

    @property
    def _folder_name(self) -> str:
        return self.benchmark.replace(":", ".")

    @property
    def chain(self) -> Path:
        """Record of this pipeline's chain of Slurm jobs."""
        return self.root / CHAINS / self.name

    @property
    def artifacts(self) -> Path:
        """Base folder of the attempts, each in a folder named by its fingerprint."""
        return self.root / ARTIFACTS

    @property
    def runs(self) -> Path:
        """Base folder of collected runs."""
        return self.root / RUNS

    @property
    def data(self) -> Path:
        """Root of the data registry."""
        return self.root / "data"
