"""Threads that step environments: the job's CPUs for environments that compute, one per conversation for those that
wait."""

from __future__ import annotations

import os

import pytest

from r2v import config as c
from r2v.config.execution import RolloutConfig, allocated_cpus


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.delenv("SLURM_CPUS_ON_NODE", raising=False)


@pytest.mark.parametrize(("granted", "cpus"), [(None, 8), ("3", 3), ("64", 8), ("", 8), ("4(x2)", 8), ("0", 1)])
def test_the_cpus_are_those_of_the_allocation(granted: str | None, cpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if granted is not None:
        monkeypatch.setenv("SLURM_CPUS_ON_NODE", granted)
    assert allocated_cpus() == cpus


def test_auto_is_the_default_and_a_number_is_taken_as_it_is() -> None:
    auto = RolloutConfig()
    assert auto.workers == "auto" and c.load(None, ["rollout.workers=auto"]).rollout == auto
    assert (auto.world_threads(), auto.world_threads(waiting=True)) == (8, 64)
    wide = RolloutConfig(max_conversations=100_000)
    assert (wide.world_threads(), wide.world_threads(waiting=True)) == (8, 4096)
    narrow = c.load(None, ["rollout.max_conversations=5"]).rollout
    assert (narrow.world_threads(), narrow.world_threads(waiting=True)) == (5, 5)
    three = c.load(None, ["rollout.workers=3"]).rollout
    assert (three.world_threads(), three.world_threads(waiting=True)) == (3, 3)
