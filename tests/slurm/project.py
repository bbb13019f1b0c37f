"""A checkout in a folder of its own on a test cluster: scripts, a configuration for small data, stand-in bodies."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests import warm
from tests.slurm.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
FAKE_STAGES = ROOT / "tests/slurm/fake_stages"
CONFIG = """
policy: {device: cuda}
env: {options: {num_tasks: 40, num_heldout: 8}}
data: {num_episodes: 4, seeds: [1]}
training: {preference: {batch_size: 8, gradient_accumulation_steps: 2}}
"""
FILTERS = {
    "SQUEUE_PARTITION": "debug",
    "SQUEUE_STATES": "all",
    "SQUEUE_FORMAT2": "jobid",
    "SACCT_FORMAT": "jobid",
    "SINFO_PARTITION": "debug",
    "SCANCEL_STATE": "SUSPENDED",
    "SALLOC_PARTITION": "debug",
}
"""Slurm's own variables in a user's profile: R2V must see its whole queue all the same."""
NAME = "desk_noisy"
JOBS = (
    "collect",
    "perturb",
    "bc",
    "verifier",
    "candidates",
    "preference",
    "router_features",
    "router",
    "evaluate",
    "ablations",
)
EDGES = {
    "collect": [],
    "perturb": ["collect"],
    "bc": ["perturb"],
    "verifier": ["collect"],
    "candidates": ["bc", "verifier"],
    "preference": ["candidates"],
    "router_features": ["preference"],
    "router": ["router_features"],
    "evaluate": ["router"],
    "ablations": ["router"],
}
"""Dependencies of each job."""


class Project:
    """One project folder. With `fake_stages` the stages' bodies cost nothing and behave as `behave` says."""

    def __init__(self, cluster: Cluster, folder: Path, *, config: str = CONFIG, fake_stages: bool = True) -> None:
        self.cluster, self.folder = cluster, folder
        shutil.copytree(ROOT / "scripts/slurm", folder / "scripts/slurm")
        for name in ("logs", "data", "outputs", "results", "configs/desk"):
            (folder / name).mkdir(parents=True)
        for name in ("noisy", "clean"):
            (folder / f"configs/desk/{name}.yaml").write_text(f"{config}\n")
        shutil.copy(ROOT / "run_all.sh", folder)
        self.behave()
        self.env = {
            "PYTHONPATH": f"{FAKE_STAGES}:{ROOT}" if fake_stages else str(ROOT),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "PATH": f"{Path(sys.executable).parent}:{cluster.env['PATH']}",
            **FILTERS,
        }

    def copy(self, folder: Path) -> Project:
        """Return a copy of the project, with all its results, in another folder."""
        shutil.copytree(self.folder, folder, symlinks=True)
        other = object.__new__(Project)
        other.cluster, other.folder, other.env = self.cluster, folder, self.env
        return other

    def run(self, *command: str | Path, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command in the project's folder."""
        env = {**self.env, **options.pop("env", {})}
        return self.cluster.run(*command, check=check, cwd=self.folder, env=env, **options)

    def r2v(self, *words: str, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run one of R2V's commands."""
        return self.run(warm.login_python(), "-m", "r2v", *words, check=check, **options)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start one of R2V's commands and leave it running."""
        return subprocess.Popen(
            [warm.login_python(), "-m", "r2v", *words],
            cwd=self.folder,
            text=True,
            env={**self.cluster.env, **self.env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def sbatch(self, line: str) -> str:
        """Type an sbatch line in a shell; return the job id."""
        said = self.run("bash", "-c", line).stdout
        return said.split()[-1]

    def behave(self, **jobs: dict[str, Any]) -> None:
        """Set the behaviour of these jobs' stand-in bodies from now on; all others succeed."""
        draft = self.folder / "drill.json.new"
        draft.write_text(json.dumps(jobs))
        draft.replace(self.folder / "drill.json")

    def header(self, script: str, **directives: str) -> None:
        """Change directives in the header of a script, as its user would."""
        path = self.folder / "scripts/slurm" / script
        text = path.read_text()
        for name, value in directives.items():
            text = re.sub(rf"^#(SBATCH|R2V \w+) --{name}=.*$", rf"#\1 --{name}={value}", text, flags=re.M)
        path.write_text(text)

    def chain(self) -> dict[str, Any]:
        """Return chain.json; {} before there is one."""
        path = self.folder / "outputs/.chains" / NAME / "chain.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def attempts(self, job: str) -> list[dict[str, Any]]:
        """Return the attempts of a job, oldest first."""
        found: list[dict[str, Any]] = self.chain()["jobs"][job]["attempts"]
        return found

    def ids(self) -> dict[str, str]:
        """Return the current Slurm job id of each job of the chain."""
        return {name: job["attempts"][-1]["id"] for name, job in self.chain()["jobs"].items() if job["attempts"]}

    def record(self, job_id: str, file: str) -> dict[str, Any]:
        """Return start.json, error.json or exit.json of a Slurm job; {} where it has none."""
        path = self.folder / "outputs/.chains" / NAME / "jobs" / job_id / file
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def status(self) -> tuple[int, dict[str, dict[str, Any]]]:
        """Return the exit code of `r2v status --json` and its entry for each job of the chain."""
        done = self.r2v("status", NAME, "--json", check=False)
        assert done.returncode in (0, 1, 10), done.stderr
        (told,) = json.loads(done.stdout)["chains"]
        return done.returncode, {job["job"]: job for job in told["jobs"] if not job["by_hand"]}

    def drained(self, timeout: float = 120) -> None:
        """Wait until none of our jobs waits or runs."""
        self.cluster.wait(lambda: not self.cluster.squeue(), timeout, every=0.2)

    def log(self, job: str, at: int = -1) -> str:
        """Return the log of one attempt of a job."""
        job_id = self.attempts(job)[at]["id"]
        return "".join(path.read_text() for path in self.folder.glob(f"logs/*_{job_id}.out"))

    def artifact(self, place: str) -> dict[str, Any]:
        """Return the manifest of a published artifact."""
        found: dict[str, Any] = json.loads((self.folder / place / "artifact.json").read_text())
        return found

    def hashes(self) -> dict[str, dict[str, str]]:
        """Return every finished artifact's content hashes, by job and fingerprint."""
        return {
            path.parent.name: json.loads(path.read_text())["files"]
            for path in (self.folder / "outputs/.artifacts").glob("*/artifact.json")
        }


def ours_alive(folder: Path) -> list[str]:
    """Return the command lines of other processes that work in this folder or below it."""
    found = []
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            if int(proc.name) != os.getpid() and (proc / "cwd").readlink().is_relative_to(folder.resolve()):
                found.append((proc / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found
