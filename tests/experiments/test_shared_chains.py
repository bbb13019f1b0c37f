"""Chains shared by several processes: a stage in progress elsewhere is helped or waited for, never made twice."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from r2v.config import Config, load
from r2v.errors import LeaseConflict
from r2v.experiments import shared_chains
from r2v.experiments.shared_chains import LONGEST, SHORTEST, make_chains
from r2v.pipeline.graph import selection, upstream
from r2v.pipeline.rows import Job
from r2v.pipeline.run import StageResult
from r2v.storage.integrity import Artifact

ALL = upstream(["evaluate"], selection(Config())[0])


@dataclass
class Project:
    """Stand-in for a project's jobs: some are held by another process for so many tries."""

    held: dict[tuple[int, str], int] = field(default_factory=dict)
    """(seed of the configuration, job) -> tries."""
    made: list[tuple[int, str]] = field(default_factory=list)
    helped: list[tuple[int, str]] = field(default_factory=list)

    def run_job(self, config: Config, row: Job, inputs: Any, **how: Any) -> StageResult:
        assert set(inputs) == set(row.inputs) and not how["publish"]
        point = (config.seed, row.name)
        if self.held.get(point):
            self.held[point] -= 1
            raise LeaseConflict("held")
        self.made.append(point)
        artifact = Artifact(stage=row.stage, fingerprint="0", folder=Path(), files={}, summary={})
        return StageResult(job=row.name, artifact=artifact, fresh=True)

    def help_job(self, config: Config, row: Job, inputs: Any, **how: Any) -> None:
        self.helped.append((config.seed, row.name))


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> Project:
    stand_in = Project()
    monkeypatch.setattr(shared_chains, "run_job", stand_in.run_job)
    monkeypatch.setattr(shared_chains, "help_job", stand_in.help_job)
    return stand_in


def configs(*overrides: str) -> dict[str, Config]:
    return {name: load(None, [f"seed={seed}", *overrides]) for name, seed in (("base", 1), ("no_dpo", 2))}


def test_a_chain_that_another_holds_up_is_left_for_the_next_one(project: Project) -> None:
    project.held[1, "bc"] = 1
    slept: list[float] = []
    chains = make_chains(configs(), sleep=slept.append)
    assert {name: set(chain) for name, chain in chains.items()} == {"base": ALL, "no_dpo": ALL} and not slept
    assert len(project.made) == len(set(project.made)) == 2 * len(ALL)
    assert project.made.index((1, "bc")) > project.made.index((2, "evaluate"))
    assert project.helped == [], "a training takes no helpers"


def test_what_another_plays_is_played_along_and_then_looked_for_ever_more_seldom(project: Project) -> None:
    project.held[1, "evaluate"] = project.held[2, "evaluate"] = 8
    slept: list[float] = []
    make_chains(configs(), sleep=slept.append)
    assert slept[:3] == [SHORTEST, 2 * SHORTEST, 4 * SHORTEST] and slept[-1] == LONGEST
    assert project.helped == [(1, "evaluate"), (2, "evaluate")] * 8


def test_what_one_process_must_play_is_waited_for(project: Project) -> None:
    project.held[1, "collect"] = 2  # with batches its one block is as wide as they are
    make_chains(configs("teacher.provider=openai", "teacher.model_name=gpt-5.2"), sleep=lambda seconds: None)
    assert project.helped == [] and len(project.made) == 2 * len(ALL)
