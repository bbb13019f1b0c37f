"""Tables of several students: each one's tasks and policies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.looks import LEDGER, open_look, read_looks
from benchmarks.students import FIRST_TASK, Size, fresh_specs
from r2v.config import Config
from r2v.data.split import assign
from r2v.envs.base import Benchmark
from r2v.envs.chain import ChainBenchmark
from r2v.envs.desk import Desk
from r2v.errors import UsageError


def _specs(benchmark: Benchmark, count: int, first: int = FIRST_TASK) -> list[str]:
    runner: Any = SimpleNamespace(world=SimpleNamespace(benchmark=benchmark))
    return [spec.task.task_id for spec in fresh_specs(Config(), runner, "noisy", count, first)]


def test_desk_tasks_are_behind_those_of_every_configuration() -> None:
    read = {task.task_id for task in Desk().tasks()}
    fresh = _specs(Desk(), 5, 3_000)
    assert len(set(fresh)) == 5 and not read & set(fresh) and len(read) < FIRST_TASK


def test_tasks_of_no_earlier_look_can_be_drawn_again_by_another_study(tmp_path: Path) -> None:
    ledger = tmp_path / LEDGER.name
    ledger.write_text(LEDGER.read_text())
    for look in read_looks(LEDGER):
        again = replace(look, first=look.first + look.count - 1, study="frozen elsewhere", again="")
        with pytest.raises(UsageError, match="take unread tasks"):
            open_look(ledger, again)
    assert read_looks(ledger) == read_looks(LEDGER)
    assert {(look.first, look.count) for look in read_looks(LEDGER)} >= {(70_000, 200), (72_000, 200)}


def test_elsewhere_they_are_of_the_evaluation_split_and_no_more_than_there_are() -> None:
    chain = ChainBenchmark(num_tasks=60)
    split = assign(chain.tasks())
    held = [task.task_id for task in chain.tasks() if split[task.task_id] == "evaluation"]
    assert _specs(chain, 4, 0) == held[:4] and _specs(chain, 3, 2) == held[2:5]
    with pytest.raises(UsageError, match=rf"the evaluation split has {len(held)}; raise env.options.num_tasks"):
        _specs(chain, len(held), 1)


def test_rivals_are_those_named_before_the_run_and_r2v() -> None:
    everybody: Any = {"r2v": 0, "entropy": 1, "verifier": 2}
    assert list(Size(num_tasks=1, first_task=0, rivals=["verifier"]).named(everybody)) == ["r2v", "verifier"]
    assert Size(num_tasks=1, first_task=0).named(everybody) == everybody
    with pytest.raises(UsageError, match="--rivals entropi: no such rival"):
        Size(num_tasks=1, first_task=0, rivals=["entropi"]).named(everybody)
