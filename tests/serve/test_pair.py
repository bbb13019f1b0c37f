"""The served pair: through the server it decides and acts as the evaluation did, step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from r2v.config import Config, TaskSelection, load
from r2v.data.episode import Episode
from r2v.data.store import read_episodes
from r2v.emulator import Emulator
from r2v.envs.desk import Desk
from r2v.evaluation.setup import episodes_path
from r2v.llm.waves import Waves
from r2v.pipeline.write_bundle import write_bundle
from r2v.rollout.actors import GreedyActor
from r2v.rollout.model_factory import Purse, priced_teacher
from r2v.rollout.session import RolloutWorld, episode_specs, play_many
from r2v.serve.bundle import Bundle, read_bundle
from r2v.serve.server import Listening, listening
from r2v.serve.traffic import read_traffic
from tests.serve.stub import in_thread
from tests.trust import MICRO

pytestmark = pytest.mark.numerical
LLM = "big-1"


@pytest.fixture(scope="module")
def bundle(micro_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("bundles") / "desk"
    write_bundle(load(str(MICRO)), folder, micro_run)
    return read_bundle(folder)


@pytest.fixture
def place(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listening]:
    """A server of the bundle in front of the desk's expert as a provider's model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    monkeypatch.setenv("CLIENT_API_KEY", "k" * 20)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with Emulator(answer="desk", models=[LLM]) as emulator:
        teacher = {
            "provider": "openai",
            "model_name": LLM,
            "base_url": emulator.openai_url,
            "usd_in": 1.0,
            "usd_out": 4.0,
        }
        config = load({"teacher": teacher, "serve": {"port": 0}})

        async def main(ready, stop: asyncio.Event) -> None:  # type: ignore[no-untyped-def]
            keys = {"client": "k" * 20}
            async with listening(config, tmp_path, record=True, keys=keys, bundle=bundle.folder) as listening_:
                ready(listening_)
                await stop.wait()

        with in_thread(main) as made:
            yield made


def agent(place: Listening, model: str) -> Config:
    """The desk's own agent, as a client of the server: it acts by whatever answers under this name."""
    teacher = {"provider": "openai", "model_name": model, "base_url": f"{place.url}/v1", "usd_in": 1.0, "usd_out": 4.0}
    more = {"api_key_env": "CLIENT_API_KEY", "preflight": False, "mode": "concurrent", "max_tokens": 64}
    return load(str(MICRO), [f"teacher.{key}={value}" for key, value in (teacher | more).items()])


def played(place: Listening, model: str, condition: str, folder: Path) -> list[Episode]:
    config = agent(place, model)
    desk, waves = Desk(**config.env.options), Waves(workers=2)
    llm = priced_teacher(config.teacher, config.cost, desk, waves, Purse(folder=folder))
    world = RolloutWorld(desk, config.perturbations, config.inference)
    selection = TaskSelection.evaluation(config, condition)
    limit = config.evaluation.num_tasks
    specs = episode_specs(desk, "evaluation", config.evaluation.seeds, selection, method="r2v", limit=limit)
    return sorted(play_many(waves, world, specs, GreedyActor(llm, "teacher")), key=lambda episode: episode.episode_id)


@pytest.mark.parametrize("condition", ["noisy", "shift"])
def test_it_acts_as_the_evaluation_did(
    condition: str, place: Listening, bundle: Bundle, micro_run: Path, tmp_path: Path
) -> None:
    evaluated = read_episodes(episodes_path(micro_run / "results" / "micro", condition, "r2v"))
    episodes = played(place, "r2v", condition, tmp_path / "agent")
    assert [one.episode_id for one in episodes] == [one.episode_id for one in evaluated]
    rows = [row for row in read_traffic(place.folder) if row["kind"] == "turn"]
    assert not {row["decision"]["reason"] for row in rows} - {"score", "budget"}
    for mine, theirs in zip(episodes, evaluated, strict=True):
        assert [step.action.raw_text for step in mine.steps] == [step.action.raw_text for step in theirs.steps]
        assert [step.reward for step in mine.steps] == [step.reward for step in theirs.steps]
        assert mine.success == theirs.success
    decided = sorted((row["decision"]["score"], row["source"]) for row in rows)
    expected = sorted(
        (step.decision.p_escalate, "llm" if step.decision.escalated else "small")
        for episode in evaluated
        for step in episode.steps
        if step.decision is not None
    )
    assert decided == expected and {source for _, source in expected} == {"small", "llm"}
