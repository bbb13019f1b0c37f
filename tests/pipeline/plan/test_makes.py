"""What a job makes: ablations make again what each change touches, each once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from r2v.config import Config, identity, load
from r2v.config.ablations import registry
from r2v.experiments import ablations, shared_chains
from r2v.pipeline.plan.makes import makes_of
from r2v.pipeline.rows import Job
from r2v.storage.artifact import fingerprint


def test_a_usual_job_makes_itself() -> None:
    config = load(None)
    assert makes_of("evaluate", config) == [("evaluate", config)]


def test_an_ablation_study_makes_what_changes_and_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the study itself, whose jobs are counted by fingerprint."""
    config = load(
        None,
        [
            "ablations.names=[none,with_verifier,no_dpo,no_perturbation,best_of_4,label_episode,beta_02,nothing_held_out]"
        ],
    )
    asked: list[tuple[str, str, Any]] = []

    def run_job(config: Config, row: Job, inputs: Any, **_: Any) -> Any:
        stage = row.load()
        key = fingerprint(row.stage, stage.version, vars(stage.sections(config)), inputs)
        asked.append((row.name, key, identity(config)))
        return SimpleNamespace(artifact=SimpleNamespace(fingerprint=key, data_sha256=key))

    monkeypatch.setattr(shared_chains, "run_job", run_job)
    for chain in (config, *ablations.chains_of(config)):
        shared_chains.make_chains({"chain": chain}, root=tmp_path)
    own = {key for name, key, _ in asked[:9] if name != "evaluate"}
    fresh = {key: (name, whole) for name, key, whole in reversed(asked[9:]) if key not in own}
    found = [(name, identity(whole)) for name, whole in makes_of("ablations", config)]
    assert sorted(map(str, found)) == sorted(map(str, fresh.values()))
    assert {name for name, _ in found} >= {"perturb", "bc", "candidates", "preference", "router", "evaluate"}


def test_a_changed_configuration_is_the_one_that_its_overrides_load() -> None:
    for row in registry().rows.values():
        changes = (*row.shared, *row.overrides)
        assert ablations._changed(load(None), changes) == load(None, changes)
