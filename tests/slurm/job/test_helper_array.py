"""Helpers beside a job: the array's start, its options, and its end together with the job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from r2v.errors import UsageError
from r2v.log import logger
from r2v.slurm.chain.job_record import JobRecord, record_at
from r2v.slurm.client import client
from r2v.slurm.job.helper_array import HelperArray, helper_array
from r2v.slurm.site import headers
from tests.slurm.cluster import Cluster
from tests.slurm.faked import Faked, ago
from tests.slurm.faked import faked as faked

WORDS = ["evaluate", "--seeds", "1"]
BATCHES = ["--overrides", "teacher.provider=openai", "teacher.model_name=gpt-5.2"]
HEADER = """#!/bin/bash
#SBATCH --partition=gpu
#SBATCH --mem=48G
#SBATCH --time=24:00:00
#SBATCH --job-name=evaluate
#SBATCH --signal=B:USR2@120
#R2V evaluate --helpers=15%8
#R2V evaluate --cpus-per-task=4
exec true
"""


def script(root: Path, text: str = HEADER) -> Path:
    path = root / "scripts/slurm/08_evaluate.sh"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def at_pace(done: int, total: int, seconds: float, *, helpers: tuple[str, ...] = ()) -> JobRecord:
    """Return a job that has done `done` of `total` in so many seconds."""
    events: list[dict[str, Any]] = [
        {"at": ago(seconds), "what": "evaluate", "done": 0, "total": total, "restart": 0},
        {"at": ago(0), "what": "evaluate", "done": done, "total": total, "restart": 0},
    ]
    return JobRecord(folder=Path(), events=events, helpers=helpers)


def beside(faked: Faked) -> HelperArray:
    script(faked.root)
    array = helper_array(WORDS, name="own_noisy", job="evaluate", job_id="42")
    assert array is not None
    faked.answer()
    return array


def calls(faked: Faked, command: str) -> list[list[str]]:
    log = faked.folder / "calls.log"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return [words for words in lines if words[0] == command]


def test_the_header_says_how_many(tmp_path: Path) -> None:
    path = script(tmp_path)
    assert headers.read(path, "evaluate").helpers == "15%8"
    assert headers.read(path, "evaluate").merged({"mem": "64G"}).helpers == "15%8"
    assert headers.read(path).helpers == "" == headers.read(path, "ablations").helpers
    headers.rewrite([path], {"partition": "batch"})
    assert headers.read(path, "evaluate").helpers == "15%8"


@pytest.mark.parametrize("value", ["", "=", "=0", "=all", "=4%0", "=4-8"])
def test_a_number_that_is_none_is_named_by_its_line(tmp_path: Path, value: str) -> None:
    path = script(tmp_path, HEADER.replace("--helpers=15%8", f"--helpers{value}"))
    with pytest.raises(UsageError, match=r"08_evaluate.sh:7: --helpers.*written --helpers=15%8"):
        headers.read(path)


def test_a_job_with_hours_to_go_submits_the_array_once(faked: Faked) -> None:
    array = beside(faked)
    array.submit_if_worth(at_pace(1, 1000, 60))
    array.submit_if_worth(at_pace(2, 1000, 120))
    (submitted,) = calls(faked, "sbatch")
    assert {"--array=1-15%8", "--partition=gpu", "--mem=48G", "--time=24:00:00", "--cpus-per-task=4"} <= set(submitted)
    assert {"--comment=r2v-helpers:own_noisy/evaluate", "--signal=B:TERM@120", "--requeue"} <= set(submitted)
    assert [word for word in submitted if word.startswith("--job-name")] == ["--job-name=help_evaluate_own_noisy"]


def test_the_array_s_id_stands_in_the_record_of_the_job(faked: Faked) -> None:
    array = beside(faked)
    array.submit_if_worth(at_pace(1, 1000, 60, helpers=("90",)))
    before, fresh = record_at(Path()).helpers
    assert before == "90" and fresh.isdigit()


def test_a_job_that_is_soon_done_or_of_which_no_pace_is_known_asks_nobody(faked: Faked) -> None:
    array = beside(faked)
    array.submit_if_worth(at_pace(900, 1000, 600))
    array.submit_if_worth(JobRecord(folder=Path()))
    assert faked.calls == []


@pytest.mark.parametrize("event", ['{"what": "evaluate", "total": 10, "done": 1}', '{"total": 1, "at": "no time"}', ""])
def test_records_that_tell_nothing_end_no_job(faked: Faked, event: str) -> None:
    (faked.root / "events.jsonl").write_text(f"{event}\n{event}\n")
    beside(faked).look(faked.root)
    (faked.root / "events.jsonl").unlink()
    (faked.root / "start.json").mkdir()  # a folder, which cannot be opened as a file
    beside(faked).look(faked.root)
    assert calls(faked, "sbatch") == []


def test_helpers_that_an_earlier_start_asked_for_are_enough(faked: Faked) -> None:
    row = {"Comment": "r2v-helpers:own_noisy/evaluate", "WorkDir": str(faked.root)}
    faked.queued("90_1", "RUNNING", **row)
    beside(faked).submit_if_worth(at_pace(1, 1000, 60))
    assert calls(faked, "sbatch") == []


def test_a_cluster_that_refuses_is_a_line_and_the_job_goes_on(faked: Faked, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(logger, "warning", lambda line, *words: said.append(line % words))
    array = beside(faked)
    faked.down("sbatch", "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy")
    array.submit_if_worth(at_pace(1, 1000, 60))
    refused = "sbatch: Batch job submission failed: Job violates accounting/QOS policy"
    assert said == [f"r2v job has no helpers, going on alone: job=42 error={refused}"]


def test_a_stage_that_one_process_must_play_asks_for_none(faked: Faked) -> None:
    array = beside(faked)
    array.job, array.words = "collect", ["collect", *BATCHES]
    array.submit_if_worth(at_pace(1, 1000, 60))
    assert calls(faked, "sbatch") == []


@pytest.mark.parametrize(
    ("exit_code", "goes_on", "cancelled"), [(0, False, ["90_2"]), (1, False, ["90_1", "90_2"]), (75, True, [])]
)
def test_the_array_leaves_with_the_job(faked: Faked, exit_code: int, goes_on: bool, cancelled: list[str]) -> None:
    row = {"Comment": "r2v-helpers:own_noisy/evaluate", "WorkDir": str(faked.root)}
    faked.queued("90_1", "RUNNING", **row)
    faked.queued("90_2", "PENDING", **row)
    faked.queued("91_1", "PENDING", Comment="r2v-helpers:own_noisy/evaluate", WorkDir="/another/checkout")
    faked.queued("92", "PENDING", Comment="r2v:own_noisy/ablations/ab", WorkDir=str(faked.root))
    beside(faked).end(exit_code, goes_on=goes_on)
    assert [words[2:] for words in calls(faked, "scancel")] == ([cancelled] if cancelled else [])


def test_without_slurm_or_a_line_in_the_header_there_is_no_array(tmp_path: Path) -> None:
    script(tmp_path)
    assert helper_array(WORDS, name="own", job="evaluate", job_id="", root=tmp_path) is None
    assert helper_array(["run"], name="own", job="run", job_id="42", root=tmp_path) is None
    script(tmp_path, HEADER.replace("#R2V evaluate --helpers=15%8\n", ""))
    assert helper_array(WORDS, name="own", job="evaluate", job_id="42", root=tmp_path) is None


def test_a_real_slurm_takes_the_array_and_gives_it_back(
    slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All nodes are drained, so that every task of the array waits."""
    for name, value in slurm.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    script(tmp_path, HEADER.replace("--mem=48G", "--mem=100M"))
    array = helper_array(WORDS, name="own_noisy", job="evaluate", job_id="42")
    assert array is not None
    with slurm.drained():
        array.submit_if_worth(at_pace(1, 1000, 60))
        rows = client.queue("own_noisy", tmp_path, mark=client.HELPERS_MARK)
        assert [client.job_number(row.id)[1] for row in rows] == list(range(1, 16))
        assert client.queue("own_noisy", tmp_path) == []
        array.end(0, goes_on=False)
        slurm.wait(lambda: not slurm.squeue())
