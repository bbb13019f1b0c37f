"""Resource requests: the header, then the user's SBATCH_* variables; the bundled models ask for CPUs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from r2v.config import Config, load
from r2v.slurm import run_all
from r2v.slurm.chain import chain as chains
from r2v.slurm.chain.chain import Chain
from r2v.slurm.client.submit import environment_lines
from r2v.slurm.site import headers, requests
from r2v.storage.weights import needs_gpu
from tests.slurm.faked import Faked
from tests.slurm.faked import faked as faked

ROOT = Path(__file__).resolve().parents[3]
GPU = ["policy.device=cuda"]


@pytest.fixture
def checkout(faked: Faked) -> Faked:
    for name in ("scripts/slurm", "configs"):
        shutil.copytree(ROOT / name, faked.root / name)
    faked.answer()
    return faked


def submitted(checkout: Faked, overrides: list[str]) -> Chain:
    assert run_all.submit(benchmark="desk", overrides=overrides, start="collect") == 0
    return chains.read(checkout.root, "desk_noisy")


def test_a_users_sbatch_variables_act_on_every_job_of_a_chain(checkout: Faked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them a whole chain would be billed to another account."""
    monkeypatch.setenv("SBATCH_ACCOUNT", "labx")
    monkeypatch.setenv("SBATCH_TIMELIMIT", "90")
    made = submitted(checkout, GPU)
    for job in made.jobs.values():
        assert job.latest is not None
        assert (job.latest.resources["account"], job.latest.resources["time"]) == ("labx", "90")
        script = (
            checkout.root / "outputs/.chains/desk_noisy/submitit" / job.latest.id / f"{job.latest.id}_submission.sh"
        )
        assert "#SBATCH --account=labx\n" in script.read_text()
    assert made.sentinel.items() >= {"partition": "cpu", "account": "labx", "time": "5"}.items()


def test_what_slurm_sets_in_a_job_and_what_names_the_job_are_no_wishes_of_the_user() -> None:
    values = {"SBATCH_MEM_BIND": "local", "SBATCH_JOB_NAME": "x", "SBATCH_OUTPUT": "y", "SLURM_JOB_ID": "7", "PATH": ""}
    assert requests.from_environment(values) == {}
    assert requests.from_environment({"SLURM_CLUSTERS": "c2", "SBATCH_CONTAINER_IMAGE": "i"}) == {
        "clusters": "c2",
        "container-image": "i",
    }


def test_the_bundled_student_asks_for_cpus_where_perturb_runs(checkout: Faked) -> None:
    made = submitted(checkout, [])
    small = headers.read(checkout.root / "scripts/slurm/02_perturb.sh").directives
    for name, job in made.jobs.items():
        assert job.latest is not None
        asked, own = job.latest.resources, headers.read(checkout.root / "scripts/slurm" / job.script, name).directives
        assert {key: asked[key] for key in ("partition", "cpus-per-task", "mem", "nodes", "ntasks")} == {
            key: small[key] for key in ("partition", "cpus-per-task", "mem", "nodes", "ntasks")
        }
        assert asked["time"] == own["time"] and "gres" not in asked


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [([], False), (["policy.model_name=toy"], False), (GPU, True), (["policy.model_name=Qwen/Qwen2.5-0.5B"], True)],
)
def test_who_needs_a_gpu(overrides: list[str], expected: bool) -> None:
    config: Config = load(None, overrides)
    assert needs_gpu(config.policy) is expected


def test_a_header_keeps_its_helpers_on_cpus(checkout: Faked) -> None:
    asked = requests.of_job(checkout.root, "08_evaluate.sh", "evaluate", load(None))
    assert asked.helpers == "15%8" and asked.gpus == 0


def test_env_sh_may_do_what_conda_and_modules_do(checkout: Faked) -> None:
    """Their activation scripts name variables that are not set, and run commands that fail."""
    path = checkout.root / "scripts/slurm/env.sh"
    path.write_text('export X="${ADDR2LINE}"\nfalse\n' + path.read_text())
    lines = [*environment_lines(checkout.root), "set -euo pipefail", "echo reached"]
    done = subprocess.run(["bash", "-c", "\n".join(lines)], cwd=checkout.root, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "reached\n"), done.stderr
