"""A teacher of open weights, served beside the stage or by a job of its own: a killed server loses nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from r2v.cli.main import main
from r2v.config import identity, load
from r2v.data.registry import DataRegistry
from r2v.errors import UsageError
from r2v.llm.engines.teacher import ADDRESS, Address, ServedTeacher, folder_of
from r2v.llm.providers.prices import rate_of
from r2v.storage.weights import BUNDLED
from tests import warm
from tests.llm.engines.stand_in import stand_in

MODEL = BUNDLED["tiny"]


def words(home: Path, engine: str) -> list[str]:
    return [
        *("collect", "--num-episodes", "20", "--seeds", "1", "--overrides", f"teacher.engine={engine}"),
        *(f"teacher.model_name={MODEL}", f"teacher.engine_venv={home}", "teacher.max_tokens=64"),
        *("teacher.preflight=false", "teacher.context=8192", "env.options.num_tasks=36", "env.options.num_heldout=0"),
    ]


def servers(home: Path) -> list[int]:
    """Return the processes that serve from this environment."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line, own = (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
        except OSError:
            continue
        if b"vllm.entrypoints" in line and b"launcher" not in line and str(home).encode() in own:
            pids.append(int(process.name))
    return pids


def answered(folder: Path) -> bool:
    return any('"row":"answer"' in path.read_text() for path in folder.rglob("journal.jsonl"))


def test_beside_the_stage_a_killed_server_is_started_again(tmp_path: Path) -> None:
    home = stand_in(tmp_path / "engine")
    environment = {**os.environ, "PYTHONPATH": str(warm.ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "r2v", *words(home, "vllm")],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and not answered(tmp_path / "data"):
        time.sleep(0.01)
    for pid in servers(home):
        os.kill(pid, signal.SIGKILL)
    _, errors = process.communicate()
    assert process.returncode == 0 and "engine server died" in errors, errors
    (run,) = DataRegistry(tmp_path / "data").query()
    assert run.n_episodes == 20 and run.total_cost_usd == 0.0
    assert not servers(home), "they end with the stage"


def test_a_job_serves_all_stages_and_another_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = stand_in(tmp_path / "engine")
    monkeypatch.chdir(tmp_path)
    config = load(None, words(home, "job")[words(home, "job").index("--overrides") + 1 :])
    folder = folder_of(config.teacher, tmp_path)

    def job() -> subprocess.Popen[bytes]:
        serve = ["engine", "serve", "--teacher", "--overrides", *words(home, "job")[6:]]
        environment = {**os.environ, "PYTHONPATH": str(warm.ROOT), "SLURM_JOB_ID": "7"}
        return subprocess.Popen([sys.executable, "-m", "r2v", *serve], cwd=tmp_path, env=environment)

    assert main(words(home, "job")) == 2, "no Slurm job, and nobody who would submit one"
    first = job()
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    try:
        while not (folder / ADDRESS).exists():
            time.sleep(0.02)
        address = json.loads((folder / ADDRESS).read_text())
        first.kill()
        first.wait()
        second = job()
        try:
            assert main(words(home, "job")) == 0
        finally:
            second.terminate()
            second.wait()
        assert not (folder / ADDRESS).exists() and address["url"].startswith("http://")
        assert DataRegistry(tmp_path / "data").query()[0].n_episodes == 20
        assert main(["providers", "ledger"]) == 0
        assert f"jobs that served {MODEL}: 0.00 GPU-hours" in capsys.readouterr().out
        usage = [json.loads(path.read_text()) for path in (folder / "usage").iterdir()]
        assert {record["model"] for record in usage} == {str(MODEL)} and folder.stat().st_mode & 0o077 == 0
    finally:
        first.kill()


class FixedLocator:
    """Locator of a server at a fixed address."""

    async def find(self) -> Address:
        await asyncio.sleep(0.001)
        return Address(url="http://127.0.0.1:9", key="k")

    async def connection_failed(self) -> None:
        raise AssertionError("nobody has called it")


def test_one_provider_serves_runs_of_several_event_loops() -> None:
    teacher = ServedTeacher(rate_of("openai", "lab/model", 0.0, 0.0, base_url="http://localhost/v1"), FixedLocator())

    async def run() -> None:
        await asyncio.gather(*(teacher.ping() for _ in range(3)))
        await teacher.close()

    for _ in range(2):
        asyncio.run(run())


def test_an_engine_is_no_part_of_a_fingerprint_and_a_url_is_one_with_its_key() -> None:
    beside, job = (
        load(None, [f"teacher.engine={engine}", "teacher.model_name=lab/model"]) for engine in ("vllm", "job")
    )
    assert identity(beside.teacher) == identity(job.teacher) and beside.teacher.provider == "openai"
    url = load(None, ["teacher.engine=http://gpu1:8000/", "teacher.model_name=lab/model"]).teacher
    assert (url.base_url, url.api_key_env, url.usd_in) == ("http://gpu1:8000/v1", "R2V_ENGINE_KEY", 0.0)
    for wrong, message in (("vlm", "is vllm, job or a URL"), ("http://u:p@h", "holds no key")):
        with pytest.raises(UsageError, match=message):
            load(None, [f"teacher.engine={wrong}", "teacher.model_name=lab/model"])
    with pytest.raises(UsageError, match="teacher.provider is openai"):
        load(None, ["teacher.engine=job", "teacher.provider=anthropic", "teacher.model_name=a"])
