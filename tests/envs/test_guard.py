"""The guard: an exception in a benchmark costs one episode, and a breach of the contract is one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from r2v.cli.main import main
from r2v.config import CandidatesConfig, CostConfig, InferenceConfig, PerturbationsConfig
from r2v.data.registry import DataRegistry
from r2v.data.store import StoredEpisodes
from r2v.envs.guard import GuardedEnv, described
from r2v.errors import EnvironmentFault
from r2v.llm.scripted import ScriptedBackend
from r2v.llm.waves import Waves
from r2v.rollout.actors import GreedyActor, PricedModel
from r2v.rollout.counterfactual import play_oracle
from r2v.rollout.session import EpisodeSpec, RolloutWorld, play_many
from tests.envs.broken import CONTRACT, AlwaysBreaks, Breaks, BreaksFork, CannotBeMade, Corridors, _Breaks
from tests.rollouts import play_candidates, play_corruptions


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def collect(name: str, *words: str) -> int:
    return main(["collect", "--seeds", "1", "--overrides", f"env.benchmark=tests.envs.broken:{name}", *words])


@pytest.mark.parametrize("made_by", CONTRACT, ids=lambda made_by: made_by.__name__)
def test_a_broken_contract_ends_a_stage_in_one_sentence(made_by: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert collect(made_by.__name__) == 2
    err = capsys.readouterr().err
    assert CONTRACT[made_by] in err.splitlines()[-1] and "Traceback" not in err
    assert f"`r2v check-env tests.envs.broken:{made_by.__name__}`" in err


def test_an_exception_costs_its_episode_and_the_collection_goes_on() -> None:
    _Breaks.steps = 0
    assert collect("Breaks", "rollout.workers=1", "rollout.max_conversations=1") == 0
    (run,) = DataRegistry().query()
    episodes = list(StoredEpisodes(run.trajectories))
    broken = [episode for episode in episodes if episode.env_fault is not None]
    assert run.status == "done" and 0 < len(broken) == run.n_env_faults < len(episodes)
    assert all("step raised ConnectionError: the site is down (broken.py:" in str(e.env_fault) for e in broken)
    assert all(episode.termination == "env_error" and not episode.success for episode in broken)
    assert run.success_rate == 1.0, "what was not measured is in no rate"


@pytest.mark.parametrize("name", ["AlwaysBreaks", "CannotBeMade"])
def test_where_every_episode_breaks_it_ends_with_5_and_the_same_command_tries_again(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for runs in (1, 2):
        assert collect(name) == 5
        last = capsys.readouterr().err.splitlines()[-1]
        assert "the world broke in all" in last and "r2v check-env" in last
        assert len(DataRegistry().query()) == runs


def actor(waves: Waves, benchmark: Any) -> GreedyActor:
    price = CostConfig().llm_price
    model = waves.model(ScriptedBackend(benchmark.expert, name="expert", price=price))
    return GreedyActor(PricedModel(model, price, "llm", 24), "teacher")


def plays(benchmark: Any) -> tuple[Waves, RolloutWorld, list[EpisodeSpec], GreedyActor]:
    waves = Waves(workers=1)
    world = RolloutWorld(benchmark, PerturbationsConfig(), InferenceConfig(max_steps=5))
    specs = [EpisodeSpec(task=task, seed=1, split="train") for task in benchmark.tasks()[:6]]
    return waves, world, specs, actor(waves, benchmark)


@pytest.mark.parametrize("benchmark", [AlwaysBreaks(), CannotBeMade()], ids=lambda b: type(b).__name__)
def test_candidates_and_corruptions_of_a_dead_world_are_an_environment_fault(benchmark: Any) -> None:
    waves, world, specs, teacher = plays(benchmark)
    with pytest.raises(EnvironmentFault, match="broke in all 6 episodes"):
        play_corruptions(specs, world, teacher, waves, per_episode=1, discount=0.9)
    with pytest.raises(EnvironmentFault, match="broke in all 6 episodes"):
        play_candidates(specs, world, teacher, None, [], lambda task: 0, CandidatesConfig(), waves)


def test_a_branch_that_breaks_is_not_measured_rather_than_failed() -> None:
    waves, world, specs, teacher = plays(BreaksFork())
    episodes, records = play_corruptions(specs, world, teacher, waves, per_episode=2, discount=0.9)
    assert all(episode.success for episode in episodes) and records == []
    waves, world, specs, teacher = plays(Corridors())
    assert play_corruptions(specs, world, teacher, waves, per_episode=2, discount=0.9)[1]


def test_the_oracle_does_not_take_a_broken_branch_for_an_answer() -> None:
    waves, world, specs, teacher = plays(BreaksFork())
    (episode,) = waves.run([lambda: play_oracle(world, specs[0], teacher, teacher, waves)])
    assert episode.success and episode.num_llm_fallbacks == 0


def test_an_episode_that_breaks_half_way_keeps_its_steps() -> None:
    waves, world, specs, teacher = plays(Breaks())
    _Breaks.steps = 4
    (episode,) = play_many(waves, world, specs[:1], teacher)
    assert len(episode.steps) == 3 and episode.env_fault is not None and not episode.success


def test_a_machine_out_of_memory_is_no_fault_of_the_world() -> None:
    class Full(Corridors):
        def make(self) -> Any:
            raise MemoryError

    with pytest.raises(MemoryError):
        GuardedEnv(Full()).reset(seed=1, task=Full().tasks()[0])


def test_an_exception_is_described_by_the_line_of_whose_code_raised_it() -> None:
    try:
        _Breaks.steps = 6
        _Breaks().step("")
    except ConnectionError as error:
        assert described(error).startswith("ConnectionError: the site is down (broken.py:")
    try:
        int("x" * 1000)
    except ValueError as error:
        text = described(error)
        assert len(text) < 340 and "test_guard.py" in text
