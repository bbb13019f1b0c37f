"""The record of a job: its progress, and an error of a known kind for healing."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
import torch

from r2v.errors import EmptyResult, EnvironmentFault, InputError, Interrupted, LeaseConflict, UsageError
from r2v.progress import Progress
from r2v.storage import record

ROOT = Path(__file__).parents[2]


def events(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / record.EVENTS).read_text().splitlines()]


def out_of_host_memory() -> BaseException:
    """Return torch's real error for an impossible amount of memory."""
    with pytest.raises(RuntimeError) as refused:
        torch.empty(10**15)
    return refused.value


def test_what_is_called_alike_in_two_parts_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(record.FOLDER, str(tmp_path))
    with record.part("no_dpo"), Progress("evaluation", 3) as bar:
        bar.advance(2)
    record.event("evaluation", 1, 3, {})
    told = {(event["what"], event["done"]) for event in events(tmp_path)}
    assert told == {("no_dpo: evaluation", 0), ("no_dpo: evaluation", 2), ("evaluation", 1)}


KINDS = [
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "cuda_oom", 1),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "cuda_oom", 1),
    (MemoryError(), "host_oom", 1),
    (out_of_host_memory(), "host_oom", 1),
    (OSError(errno.ENOMEM, "Cannot allocate memory"), "host_oom", 1),
    (UsageError("x"), "usage", 2),
    (InputError("x"), "input", 3),
    (EmptyResult("x"), "empty", 4),
    (EnvironmentFault("x"), "environment", 5),
    (OSError(errno.ENOSPC, "No space left"), "environment", 5),
    (LeaseConflict("x"), "lease_conflict", 6),
    (Interrupted("x"), "interrupted", 75),
    (KeyboardInterrupt(), "interrupted", 75),
    (ZeroDivisionError("division by zero"), "bug", 1),
    (RuntimeError("shape mismatch"), "bug", 1),
]


@pytest.mark.parametrize(("error", "kind", "code"), KINDS, ids=[f"{type(e).__name__}-{k}" for e, k, _ in KINDS])
def test_every_error_has_its_kind(error: BaseException, kind: str, code: int) -> None:
    told = record.describe(error)
    assert (told["kind"], told["exit_code"]) == (kind, code)


def test_the_record_names_the_line_of_ours_that_failed_and_keeps_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from r2v.config import load

    monkeypatch.setenv(record.FOLDER, str(tmp_path / "job"))
    with pytest.raises(UsageError), record.recording():
        load(None, ["training.lrr=1"])
    told = json.loads((tmp_path / "job" / record.ERROR).read_text())
    assert (told["type"], told["kind"], told["exit_code"]) == ("r2v.errors.UsageError", "usage", 2)
    assert "did you mean training.lr?" in told["message"] and told["where"].startswith("r2v/config/loading.py:")
    with pytest.raises(ValueError), record.recording():
        raise ValueError("first\nsecond")
    assert json.loads((tmp_path / "job" / record.ERROR).read_text())["message"] == "first"


def test_an_error_of_another_process_keeps_its_own_record() -> None:
    told = {"type": "torch.OutOfMemoryError", "kind": "cuda_oom", "exit_code": 1, "message": "m", "where": "w:1"}
    wrapped = InputError("said again")
    wrapped.__cause__ = record.Recorded(told)
    assert record.describe(record.Recorded(told)) == record.describe(wrapped) == told


def command(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **more}
    return subprocess.run(
        [sys.executable, "-m", "r2v", *words], cwd=folder, env=environment, capture_output=True, text=True
    )


def test_a_command_leaves_its_error_where_the_job_looks(tmp_path: Path) -> None:
    done = command(tmp_path, "perturb", R2V_RECORD=str(tmp_path / "job"))
    told = json.loads((tmp_path / "job" / record.ERROR).read_text())
    assert done.returncode == told["exit_code"] == 3 and told["message"] in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["job"]


def test_a_bug_is_recorded_and_still_a_traceback(tmp_path: Path) -> None:
    """A bug that no check catches: a user's own benchmark whose tasks are no tasks."""
    (tmp_path / "broken.py").write_text(
        "from r2v.envs.chain import ChainBenchmark\n\n\n"
        "class Broken(ChainBenchmark):\n    def tasks(self):\n        return [None]\n"
    )
    done = command(
        tmp_path,
        "collect",
        "--overrides",
        "env.benchmark=broken:Broken",
        R2V_RECORD=str(tmp_path / "job"),
    )
    told = json.loads((tmp_path / "job" / record.ERROR).read_text())
    assert done.returncode == 1 and "Traceback" in done.stderr
    assert told["kind"] == "bug" and told["type"] in done.stderr and told["where"].startswith("r2v/")
    assert f"{told['type']}: {told['message']}" in done.stderr


def test_without_a_job_nothing_is_written(tmp_path: Path) -> None:
    assert command(tmp_path, "perturb").returncode == 3
    assert list(tmp_path.iterdir()) == []


def test_a_record_that_cannot_be_written_hides_no_error(tmp_path: Path) -> None:
    (tmp_path / "job").write_text("a file in the way")
    done = command(tmp_path, "perturb", R2V_RECORD=str(tmp_path / "job"))
    assert done.returncode == 3 and "no done run" in done.stderr


def test_progress_is_an_event_at_the_start_and_at_the_end_and_seldom_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(record.FOLDER, str(tmp_path))
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    with Progress("bc", 500, done=3) as bar:
        for step in range(400):
            bar.advance(loss=step / 2)
    first, last = events(tmp_path)
    assert (first["done"], last["done"], last["total"], last["what"], last["restart"]) == (3, 403, 500, "bc", 2)
    assert last["loss"] == 199.5 and "loss" not in first
    assert datetime.fromisoformat(str(last["at"])).tzinfo is not None


def test_an_interrupted_block_says_how_far_it_came_and_a_nameless_one_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(record.FOLDER, str(tmp_path))
    with pytest.raises(KeyboardInterrupt), Progress("bc", 5) as bar:
        bar.advance()
        raise KeyboardInterrupt
    with Progress("", 5) as bar:
        bar.advance(5)
    assert [one["done"] for one in events(tmp_path)] == [0, 1]
