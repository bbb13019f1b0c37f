"""Paths: every place on disk that the pipeline reads or writes.

    places = Places(benchmark="desk", condition="noisy", prefix="mrp")
    places.published("outputs/{prefix}thing/{pipeline}")              # outputs/mrp/thing

A place is a symbolic link to the newest attempt in `outputs/.artifacts/`; runs of collected data live under
`data/runs/` and are not moved by a prefix. A benchmark of one's own, `package.module:Class`, has a dot in folder names
where the colon stands: rsync and tar read a host before a colon, PATH ends there, and NTFS forbids it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOMS = ("data", "outputs", "results")
"""Folders of a checkout below which results are published."""
ARTIFACTS = Path("outputs/.artifacts")
EPISODES = Path("outputs/.episodes")
"""Where the plays of all attempts are kept, one folder an attempt."""
RUNS = Path("data/runs")
BENCHMARK_COUNTS = Path("outputs/.benchmarks")
"""Where the counts of benchmarks of one's own are recorded, one file for each content of a module and its options."""
CHAINS = Path("outputs/.chains")
LOCAL_RUNS = Path("outputs/.runs")
"""State and logs of the runs outside Slurm, a folder a pipeline."""
SNAPSHOTS = Path("outputs/.snapshots")
"""What Slurm jobs run: code and configuration as they were submitted, a folder per content."""
SITE_LEASES = Path("outputs/.sites")
"""Where the leases of site sets lie."""
MEASURED = Path("outputs/.measured")
"""Where measurements of models' memory are kept, a file for each content."""
ENGINES = Path("outputs/.engines")
"""Where teachers that are served by a Slurm job say where they are, a folder each."""
SERVERS = Path("data/served")
"""Folder of the servers: each has a folder with its books, log and recorded sessions."""
TRAFFIC = "traffic.jsonl"
"""A server's log."""
SESSIONS = "sessions"
"""The folder of a server's recorded sessions."""
REPLIES = Path("outputs/.replies")
"""Where the project's journals of what providers were paid are registered, one file a journal."""
GAME_JOBS = Path("results/batch_jobs")
"""Where the Secret Game keeps its jobs."""
EXPERIMENTS = Path("outputs/experiments")
"""Where experiments lie, a folder <name>_<time> each."""
LOGS = Path("logs")
"""Where Slurm jobs write their output."""
BACKGROUND = Path("logs/background")
"""Where runs in the background write theirs, a folder <name>_<time> each."""
SCRIPTS = Path("scripts/slurm")
"""The sbatch scripts."""
CONFIGS = Path("configs")
"""<benchmark>/<condition>.yaml."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where one pipeline's outputs are found. `root` is the checkout; with a prefix the folder
    <benchmark>_<condition> is dropped and the prefix stands below data/, outputs/ and results/."""

    benchmark: str
    condition: str
    prefix: str = ""
    root: Path = Path()

    def published(self, template: str) -> Path:
        """The place that a template of the stage table names: {benchmark}, {pipeline} (<benchmark>_<condition>) and
        {prefix} are filled in."""
        if self.prefix:
            values = {"prefix": f"{self.prefix}/", "pipeline": "", "benchmark": self.prefix}
        else:
            values = {"prefix": "", "pipeline": self.name, "benchmark": self._folder_name}
        return self.root / template.format(**values).rstrip("/")

    @property
    def name(self) -> str:
        """What this pipeline's chain of Slurm jobs is called."""
        return self.prefix or f"{self._folder_name}_{self.condition}"

    @property
    def _folder_name(self) -> str:
        return self.benchmark.replace(":", ".")

    @property
    def chain(self) -> Path:
        """Where the chain of this pipeline's Slurm jobs is written down."""
        return self.root / CHAINS / self.name

    @property
    def artifacts(self) -> Path:
        """Where the attempts themselves lie, each in a folder named by its fingerprint."""
        return self.root / ARTIFACTS

    @property
    def runs(self) -> Path:
        """Base folder of collected runs."""
        return self.root / RUNS

    @property
    def data(self) -> Path:
        """Root of the data registry."""
        return self.root / "data"
