"""Cancel, status and the jobs of a chain need no script: whatever became of the scripts meanwhile, a simulated Slurm is
asked about the chain's jobs and obeys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from r2v.cli.main import main as cli
from r2v.slurm import chain as chains
from r2v.slurm.chain import WHOLE
from r2v.slurm.command import through
from r2v.slurm.helper_array import helper_array
from r2v.slurm.reconcile import by_sentinel, from_job
from tests.slurm.simulator import SimulatedSlurm
from tests.slurm.test_reconcile import NAME, failed, submitted
from tests.slurm.test_script_text import put

FOLDER = Path("scripts/slurm")
HARM = ("latin1", "pipe", "folder", "lost", "dangling", "binary", "utf-16", "no folder", "site")


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedSlurm]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("R2V_SLURM_PATIENCE", "30")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    cluster = SimulatedSlurm(folder=str(tmp_path))
    with through(cluster):
        yield cluster


def harm(kind: str) -> None:
    """Every script of the folder, as it may be by the time that somebody cancels."""
    FOLDER.mkdir(parents=True)
    for name in ("01_collect.sh", "08_evaluate.sh", "env.sh", "site.yaml"):
        path = FOLDER / name
        path.write_bytes(b"# gr\xfcn\n")
        if kind not in ("latin1", "no folder", "site") and name != "site.yaml":
            put(path, kind)
    if kind == "no folder":
        FOLDER.rename("elsewhere")
    if kind == "site":
        (FOLDER / "site.yaml").write_bytes(b"submit_host: [\n\xff")


@pytest.mark.parametrize("kind", HARM)
def test_a_chain_is_shown_healed_and_cancelled_whatever_its_scripts_are(
    kind: str, slurm: SimulatedSlurm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = submitted().jobs["a"].latest
    assert first is not None
    harm(kind)
    assert cli(["status", NAME]) == 10 and "running" in capsys.readouterr().out
    monkeypatch.setenv("SLURM_JOB_ID", first.id)  # a job of it starts, and ends badly; its sentinel looks
    from_job(Path(), NAME, first.id)
    assert helper_array(["evaluate", "--config", "none.yaml"], name=NAME, job="evaluate", job_id=first.id) is None
    failed(slurm, first.id)
    from_job(Path(), NAME, first.id, failed=True)
    slurm.finish(slurm.jobs[first.id], "FAILED", "137:0")
    if kind == "site":
        assert by_sentinel(NAME, WHOLE) == 5, "whether a cap is reached nobody can tell: nothing is decided"
        (FOLDER / "site.yaml").write_text("# mended\n")
    assert by_sentinel(NAME, WHOLE) == 0
    monkeypatch.delenv("SLURM_JOB_ID")
    assert [one.reason for one in chains.read(Path(), NAME).jobs["a"].attempts] == ["first", "host_oom"]
    assert cli(["cancel", NAME]) == 0
    assert {job.state for job in slurm.jobs.values()} == {"FAILED", "CANCELLED"}
