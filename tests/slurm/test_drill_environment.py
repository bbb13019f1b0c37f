"""Drills of the user's environment, on a real Slurm: the user's key reaches the jobs, Slurm's own variables change
nothing.

Every drill of this folder runs under `FILTERS` (project.py), variables that filter and format the answers of Slurm's
programs in a user's shell.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
from pathlib import Path

import pytest

from r2v.emulator import Emulator
from tests.llm.talk import MODELS, environment, paid_turns
from tests.slurm.cluster import Cluster
from tests.slurm.project import CONFIG, JOBS, NAME, Project

COLLECT_ALONE = ("--without", *JOBS[1:])


def test_a_paid_collection_has_the_key_of_the_shell_that_submitted_it(slurm: Cluster, tmp_path: Path) -> None:
    teacher = f"teacher: {{provider: openai, model_name: {MODELS['openai']}, mode: concurrent, max_usd: 1}}"
    project, key = Project(slurm, tmp_path / "project", config=f"{CONFIG}{teacher}"), f"sk-{secrets.token_hex(16)}"
    with (project.folder / "scripts/slurm/env.sh").open("a") as script:
        script.write('echo "key $(printf %s "${OPENAI_API_KEY:-}" | sha256sum)"\n')
    with Emulator(answer="desk") as emulator:
        project.env |= {**environment(emulator), "OPENAI_API_KEY": key}
        project.r2v("run_all", "desk", *COLLECT_ALONE)
        project.drained()
        paid = paid_turns(emulator)
    assert project.status()[1]["collect"]["state"] == "done", project.log("collect")
    assert paid and set(paid.values()) == {1}
    assert f"key {hashlib.sha256(key.encode()).hexdigest()}" in project.log("collect"), "by sbatch, in its environment"
    assert [path for path in project.folder.rglob("*") if path.is_file() and key.encode() in path.read_bytes()] == []


@pytest.mark.whole
def test_a_host_that_SLURM_CONF_SERVER_configures_submits(slurm: Cluster, tmp_path: Path) -> None:
    """A configless host fetches its configuration, for which munge must be at Slurm's default path."""
    munge = Path("/run/munge")
    if os.getuid() != 0 or munge.exists():
        pytest.skip("needs root, and no munge of the machine's own")
    project = Project(slurm, tmp_path / "project")
    configless = ("env", "-u", "SLURM_CONF", f"SLURM_CONF_SERVER=127.0.0.1:{slurm.port}", "R2V_SLURM_PATIENCE=2")
    with slurm.drained():
        munge.mkdir()
        try:
            (munge / "munge.socket.2").symlink_to(slurm.folder / "run/munge.sock")
            project.run(*configless, sys.executable, "-m", "r2v", "run_all", "desk", *COLLECT_ALONE)
            assert project.run(*configless, sys.executable, "-m", "r2v", "status", NAME, check=False).returncode == 10
            project.run(*configless, sys.executable, "-m", "r2v", "cancel", NAME)
        finally:
            (munge / "munge.socket.2").unlink()
            munge.rmdir()
