"""A bundle acts as its source did: in another process, from its own files, decision by decision."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from r2v.config import TaskSelection, load
from r2v.data.episode import Episode
from r2v.data.store import StoredEpisodes
from r2v.envs.desk import Desk
from r2v.errors import InputError
from r2v.evaluation.setup import episodes_path
from r2v.llm.waves import Waves
from r2v.pipeline.write_bundle import write_bundle
from r2v.rollout.session import EpisodeSpec, RolloutWorld, episode_specs
from r2v.serve.bundle.manifest import Bundle, read_bundle
from r2v.serve.bundle.play_bundle import routed_actor
from tests import warm
from tests.trust import MICRO

pytestmark = pytest.mark.numerical


@pytest.fixture(scope="module")
def bundle(micro_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("bundles") / "desk"
    write_bundle(load(str(MICRO)), folder, micro_run)
    return read_bundle(folder)


def played(bundle: Bundle, condition: str, elsewhere: Path) -> list[Episode]:
    """Return the episodes that `examples/play_bundle.py` plays with it in a process and a folder of its own."""
    words = ["--config", str(MICRO), "--condition", condition, "--output", str(elsewhere / "played.jsonl")]
    done = subprocess.run(
        [warm.python(), "-m", "examples.play_bundle", str(bundle.folder), *words],
        cwd=elsewhere,
        env={**os.environ, "PYTHONPATH": str(warm.ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(StoredEpisodes(elsewhere / "played.jsonl"))


@pytest.mark.parametrize("condition", ["noisy", "shift"])
def test_a_fresh_process_with_the_bundle_alone_decides_as_the_evaluation_did(
    bundle: Bundle, condition: str, micro_run: Path, tmp_path: Path
) -> None:
    evaluated = list(StoredEpisodes(episodes_path(micro_run / "results" / "micro", condition, "r2v")))
    assert played(bundle, condition, tmp_path) == evaluated
    scored = [step.decision for episode in evaluated for step in episode.steps if step.decision is not None]
    assert {decision.threshold for decision in scored} == {bundle.manifest.threshold}
    assert any(decision.p_escalate for decision in scored)
    assert not list(tmp_path.glob("outputs/*")) and not list(tmp_path.glob("data/*")), "nothing of a project is there"


@pytest.mark.parametrize("once", [False, True], ids=["bare", "opened once"])
def test_each_step_can_be_awaited_in_a_loop_of_the_users_own(bundle: Bundle, micro_run: Path, once: bool) -> None:
    config = load(str(MICRO))
    desk, waves = Desk(**config.env.options), Waves(workers=1)
    actor = routed_actor(bundle, desk, waves)
    world = RolloutWorld(desk, config.perturbations, config.inference)
    selection = TaskSelection.evaluation(config, "noisy")
    specs = episode_specs(desk, "evaluation", [1], selection, method="r2v", limit=4)

    async def play(spec: EpisodeSpec) -> Episode:
        session = world.start(spec)
        session.open()
        while session.termination is None:
            session.apply(await actor.act(session.view()))
        return session.episode()

    async def main() -> list[Episode]:
        async with waves.open() if once else nullcontext():
            return list(await asyncio.gather(*(play(spec) for spec in specs)))

    evaluated = list(StoredEpisodes(episodes_path(micro_run / "results" / "micro", "noisy", "r2v")))
    assert sorted(asyncio.run(main()), key=lambda episode: episode.episode_id) == evaluated
    assert any(step.decision and step.decision.escalated for episode in evaluated for step in episode.steps)


def test_settings_that_are_none_are_told(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text(json.dumps({"policy": {}}))
    with pytest.raises(InputError, match="has no section inference; export the bundle again"):
        routed_actor(replace(bundle, folder=tmp_path), Desk(), Waves(workers=1))
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(InputError, match="not the settings of a bundle"):
        routed_actor(replace(bundle, folder=tmp_path), Desk(), Waves(workers=1))


def test_a_policy_that_was_trained_on_other_prompts_is_not_played(bundle: Bundle) -> None:
    other = replace(bundle, manifest=replace(bundle.manifest, prompt_version=1))
    with pytest.raises(InputError, match="prompts of version 1, this R2V writes version None; train and"):
        routed_actor(other, Desk(), Waves(workers=1))
