"""The seed's lines for a cluster, typed with commands that answer as Slurm does; tests/slurm has a real one."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from r2v.config import Config, load
from r2v.slurm.job.script_args import expand
from tests.slurm.fake_in_process import FAKE, FAKE_INSIDE

from . import seed
from .workspace import REPOSITORY, checkout

HEADINGS = (
    "3. Quick Validation (MRP)",
    "Collect teacher trajectories",
    "Generate perturbations",
    "Train policy",
    "Train verifier",
    "Generate candidates for DPO",
    "Generate router features",
    "Train router",
    "Evaluate",
    "Run ablations",
)
SBATCH = [
    shlex.join(words) for heading in HEADINGS for words in seed.commands(seed.block(heading)) if words[0] == "sbatch"
]
PIPELINE = [shlex.join(words) for words in seed.commands(seed.block("4. Full Pipeline"))]
PROGRESS = next(line for line in seed.block("Check pipeline progress").splitlines() if "squeue" in line)
MONITORING = [line for line in seed.block("7. Monitoring Jobs").splitlines() if line and not line.startswith("#")]


@dataclass(frozen=True)
class Cluster:
    """A checkout on a login node."""

    root: Path

    def sh(self, command: str, **env: str) -> subprocess.CompletedProcess[str]:
        places = {
            "PATH": f"{FAKE}:{self.root / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": f"{FAKE_INSIDE}:{REPOSITORY}",
            "SLURM_CONF": str(self.root / "slurm" / "slurm.conf"),
            "OMP_NUM_THREADS": "1",
            "USER": "me",
            **env,
        }
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self.root,
            env={**os.environ, **places},
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def queue(self) -> list[dict[str, str]]:
        path = self.root / "slurm" / "jobs.json"
        rows: list[dict[str, str]] = json.loads(path.read_text()) if path.exists() else []
        return rows


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    for name in ("slurm", "logs"):
        (tmp_path / name).mkdir()
    return Cluster(checkout(tmp_path))


@pytest.mark.parametrize("line", SBATCH)
def test_every_sbatch_line_is_taken(line: str, cluster: Cluster) -> None:
    done = cluster.sh(line)
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 101\n"), done.stderr
    script = shlex.split(line)[1]
    assert cluster.queue[0]["Name"] in Path(script).stem, "a name that says which stage it is"


def _meant(line: str) -> tuple[str, list[str], Config]:
    """Return the stage of a line's job, its words, and the configuration that they describe."""
    _, script, *rest = shlex.split(line)
    call = re.search(r"r2v\.slurm\.job\.runner (.+) \"\$@\"", (REPOSITORY / script).read_text())
    assert call is not None
    words = expand([*call[1].split(), *rest], REPOSITORY)
    return words[0], words, load(REPOSITORY / words[words.index("--config") + 1])


def test_what_the_lines_say_reaches_the_stages() -> None:
    said = {line: _meant(line) for line in SBATCH}
    assert [stage for stage, _, _ in said.values()] == [
        "run",
        "collect",
        "perturb",
        *["train_policy"] * 3,
        "train_verifier",
        "generate_candidates",
        "generate_router_features",
        "train_router",
        "evaluate",
        "ablations",
    ]
    for line, (stage, words, config) in said.items():
        if stage != "run":
            assert (config.env.benchmark, config.data.condition) == ("webarena", "noisy"), line
        numbers = {
            "collect": "--num-episodes 500 --seeds 1 2 3",
            "perturb": "--seeds 1 2 3",
            "generate_candidates": "--K 5",
            "ablations": "--seeds 1 2 3",
            "evaluate": "--seeds 1 2 3 4 5 --methods r2v slm_only llm_only entropy_router",
        }
        assert " ".join(words[3:]) == numbers.get(stage, " ".join(words[3:]))
    assert [words[-2:] for stage, words, _ in said.values() if stage == "train_policy"] == [
        ["--stage", "bc"],
        ["--stage", "preference"],
        ["--stage", "all"],
    ]


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        (SBATCH[1], 2, "env.benchmark=webarena: "),
        ("sbatch scripts/slurm/06_generate_router_features.sh webarena", 3, "needs preference"),
        (
            "sbatch scripts/slurm/10_train_hierarchical.sh webarena noisy --overrides hierarchical.start=bc",
            3,
            "needs bc",
        ),
    ],
)
def test_a_job_by_itself_checks_first_what_it_needs(
    line: str, code: int, told: str, cluster: Cluster, tmp_path: Path
) -> None:
    """As on a node: from a copy elsewhere. It ends before any work, and the views show it."""
    _, script, *rest = shlex.split(line)
    spooled = tmp_path / "spool" / "slurm_script"
    spooled.parent.mkdir()
    shutil.copy(REPOSITORY / script, spooled)
    done = cluster.sh(
        f"cd {spooled.parent} && bash slurm_script {shlex.join(rest)}",
        SLURM_JOB_ID="901",
        SLURM_SUBMIT_DIR=str(cluster.root),
        SLURM_EXPORT_ENV="NONE",
    )
    assert done.returncode == code and told in done.stderr, done.stderr
    status = cluster.sh("python -m r2v status --json")
    job = json.loads(status.stdout)["chains"][0]["jobs"][0]
    assert (status.returncode, job["id"], job["state"], job["by_hand"]) == (1, "901", "failed", True)


@pytest.mark.parametrize("line", PIPELINE)
def test_a_benchmark_that_is_not_installed_is_refused_before_anything_is_submitted(line: str, cluster: Cluster) -> None:
    done = cluster.sh(line)
    lacking = "ANTHROPIC_API_KEY is not set" if line.endswith("swebench") else "env.benchmark=webarena: "
    assert done.returncode == 2 and lacking in done.stderr.splitlines()[-1] and "sbatch" not in done.stderr
    assert cluster.queue == []


def test_its_chain_is_printed_all_the_same(cluster: Cluster) -> None:
    done = cluster.sh(f"{PIPELINE[-1]} --dry-run")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sum("sbatch " in line for line in lines) == 22 and cluster.queue == []
    assert sum("to start at" in line for line in lines) == 20
    assert all(any(line.startswith(name) for line in lines) for name in ("webarena_noisy", "swebench_noisy"))


def test_the_pipeline_can_be_watched_and_ended_as_the_seed_says(cluster: Cluster) -> None:
    """Ten jobs of the bundled benchmark, then every line of section 7 but those that query a running job's node."""
    done = cluster.sh("bash scripts/slurm/run_all.sh desk")
    assert done.returncode == 0, done.stderr
    stages = [row for row in cluster.queue if "~heal" not in row["Comment"]]
    first = stages[0]["JobID"]
    assert len(stages) == 10 and len(cluster.queue) == 11
    assert {row["Comment"].rpartition("/")[0] for row in stages} == {
        f"r2v:desk_noisy/{row['Name'].removesuffix('_desk_noisy')}" for row in stages
    }
    shown = cluster.sh(PROGRESS).stdout
    assert re.search(rf"^ *{first} +collect_desk_noisy +PENDING", shown, re.M)
    for line in MONITORING:
        line = line.replace("<JOBID>", first)
        if not line.startswith(("tail", "scancel -u")):
            done = cluster.sh(line)
            assert done.returncode == 0, f"{line}: {done.stderr}"
    assert first not in {row["JobID"] for row in cluster.queue} and len(cluster.queue) == 10
    assert cluster.sh("scancel -u $USER").returncode == 0 and cluster.queue == []
