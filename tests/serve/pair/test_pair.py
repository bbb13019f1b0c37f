"""The served pair: through the server it decides and acts as the evaluation did, step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from r2v.config import Config, TaskSelection, load
from r2v.data.episode import Episode
from r2v.data.store import StoredEpisodes
from r2v.emulator import Emulator
from r2v.envs.desk import Desk
from r2v.evaluation.setup import episodes_path
from r2v.llm.waves import Waves
from r2v.pipeline.write_bundle import write_bundle
from r2v.rollout.actors import Actor, GreedyActor, Routed
from r2v.rollout.model_factory import Payer, priced_teacher
from r2v.rollout.session import RolloutWorld, episode_specs, play_many
from r2v.router.escalation import escalates, recorded_score
from r2v.serve.accounts.traffic import read_traffic
from r2v.serve.bundle.manifest import Bundle, read_bundle
from r2v.serve.bundle.play_bundle import bundle_gate, bundle_settings, routed_actor
from r2v.serve.server import Listening, listening
from tests.serve.stub import in_thread
from tests.trust import MICRO

pytestmark = pytest.mark.numerical
LLM = "big-1"


@pytest.fixture(scope="module")
def bundle(micro_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("bundles") / "desk"
    write_bundle(load(str(MICRO)), folder, micro_run)
    return read_bundle(folder)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A server of the bundle in front of the desk's expert as a provider's model."""

    place: Listening
    emulator: Emulator


@pytest.fixture
def setting(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Setting]:
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

        async def main(ready: Callable[[Any], None], stop: asyncio.Event) -> None:
            keys = {"client": "k" * 20}
            async with listening(config, tmp_path, record=True, keys=keys, bundle=bundle.folder) as listening_:
                ready(listening_)
                await stop.wait()

        with in_thread(main) as made:
            yield Setting(place=made, emulator=emulator)


def agent(url: str, model: str, actions: str = "text") -> Config:
    """Return the configuration of the desk's own agent, which calls a model at a URL."""
    teacher = {"provider": "openai", "model_name": model, "base_url": url, "usd_in": 1.0, "usd_out": 4.0}
    more = {"api_key_env": "CLIENT_API_KEY", "preflight": False, "mode": "concurrent", "max_tokens": 64}
    more |= {"actions": actions, "model.tools": "everywhere"}
    return load(str(MICRO), [f"teacher.{key}={value}" for key, value in (teacher | more).items()])


def played(config: Config, condition: str, folder: Path, bundle: Bundle | None = None) -> list[Episode]:
    """Play evaluation tasks by the called model, or by the bundle's pair with it as the LLM."""
    desk, waves = Desk(**config.env.options), Waves(workers=2)
    llm = priced_teacher(config.teacher, config.cost, desk, waves, Payer(folder=folder))
    actor: Actor = GreedyActor(llm, "teacher")
    if bundle is not None:
        pair = routed_actor(bundle, desk, waves)
        assert isinstance(pair, Routed)
        actor = replace(pair, llm=llm)
    world = RolloutWorld(desk, config.perturbations, config.inference)
    selection = TaskSelection.evaluation(config, condition)
    limit = config.evaluation.num_tasks
    specs = episode_specs(desk, "evaluation", config.evaluation.seeds, selection, method="r2v", limit=limit)
    return sorted(play_many(waves, world, specs, actor), key=lambda episode: episode.episode_id)


@pytest.mark.parametrize("condition,actions", [("noisy", "text"), ("shift", "text"), ("noisy", "tools")])
def test_it_acts_as_the_evaluation_did(
    condition: str, actions: str, setting: Setting, micro_run: Path, tmp_path: Path
) -> None:
    evaluated = list(StoredEpisodes(episodes_path(micro_run / "results" / "micro", condition, "r2v")))
    place = setting.place
    episodes = played(agent(f"{place.url}/v1", "r2v", actions), condition, tmp_path / "agent")
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


def test_its_tokens_and_dollars_are_the_evaluation_s(setting: Setting, bundle: Bundle, tmp_path: Path) -> None:
    """The LLM gets the same requests, byte for byte, at the same steps; the small model's bill is the same too."""
    place, emulator = setting.place, setting.emulator
    through = played(agent(f"{place.url}/v1", "r2v"), "noisy", tmp_path / "through")
    served = emulator.ledger().bills
    direct = played(agent(emulator.openai_url, LLM), "noisy", tmp_path / "direct", bundle)
    evaluated = emulator.ledger().bills[len(served) :]
    assert [one.success for one in direct] == [one.success for one in through]
    assert sorted(bill.body_sha256 for bill in served) == sorted(bill.body_sha256 for bill in evaluated) != []
    rows = [row for row in read_traffic(place.folder) if row["kind"] == "turn"]
    by_llm = [row for row in rows if row["source"] == "llm"]
    asked = [sum(row["tokens"].values()) - row["tokens"]["output"] for row in by_llm]
    assert sorted(zip(asked, (row["tokens"]["output"] for row in by_llm), strict=True)) == sorted(
        (bill.tokens_in, bill.tokens_out) for bill in evaluated
    )
    gate = bundle_gate(bundle, bundle_settings(bundle), None, None, "")
    for decision in (row["decision"] for row in rows):
        score = recorded_score(gate.score(decision["features"], 0, "", 0))
        acts = "llm" if decision["reason"] == "score" and escalates(score, decision["threshold"]) else "small"
        assert (score, acts) == (decision["score"], decision["source"]), "the log alone says who had to act"
    small = sum(row["decision"]["small"]["cost"] + row["decision"]["small"]["router"] for row in rows)
    large = sum(row["usd"] for row in by_llm)
    assert small > 0 and small + large == pytest.approx(sum(one.total_cost for one in direct), rel=1e-9)
