"""SWE-Router's two heads: their labels are executed, and the episode is handed over once."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.routing_tree import EVER, Rival, RoutingTree, walk
from benchmarks.swe_router import FIRST_STEP, decision_states, played_on, swe_router
from r2v.config import Config, RouterConfig
from r2v.envs.chain import ChainBenchmark
from r2v.router.baselines import Instruments
from r2v.router.labels import FeatureRow
from tests.chains import Stage, chain_stage, specs

CHAIN = ChainBenchmark(num_tasks=12, length=6, hard=2)


@pytest.fixture(scope="module")
def on() -> Stage:
    return chain_stage(CHAIN, (0.9, 0.3), 0.95)


def trees(on: Stage) -> list[RoutingTree]:
    models: Any = SimpleNamespace(waves=on.waves, world=on.world, slm=on.small, llm=on.large)
    return [RoutingTree(models, spec) for spec in specs(CHAIN, 12)]


def row(episode: int, step: int, hard: bool, succeeds: bool, split: str = "train", number: int = 0) -> FeatureRow:
    return FeatureRow(
        state_id=f"{episode}#{step}",
        episode_id=f"{episode}",
        task_id=f"t{episode}",
        split=split,
        step_idx=step,
        actor="slm",
        features={"page.hard": float(hard)},
        slm_episode_success=succeeds,
        round=number,
    )


def handed_over_at(step: int) -> Rival:
    async def judged(tree: RoutingTree, node: Any) -> tuple[float, float]:
        await tree.kept(node)
        return 0.5 * (node.view.step >= step), 0.0

    return Rival(name=f"hand over at {step}", judged=judged, stays=EVER)


def test_the_llms_label_is_the_episode_that_is_handed_over_at_that_step(on: Stage) -> None:
    endings = on.waves.run(partial(played_on, tree, {1, 3, 4}) for tree in trees(on))
    for step in (1, 3, 4):
        for spec_endings, tree in zip(endings, trees(on), strict=True):
            (walked,) = on.waves.run([partial(walk, tree, handed_over_at(step), 0.5)])
            if len(walked.asked) > step:
                assert spec_endings[step] == walked.success
            else:
                assert step not in spec_endings
    assert {success for ending in endings for success in ending.values()} == {True, False}


def test_states_are_of_round_0_from_the_first_decision_on() -> None:
    rows = [row(episode, step, False, True, number=episode) for episode in (0, 1) for step in range(9)]
    assert [state.state_id for state in decision_states(rows)] == [f"0#{step}" for step in range(FIRST_STEP, 9)]


def test_the_score_is_the_llms_chance_less_the_small_policys_and_never_before_the_first_decision() -> None:
    """At a hard page the small policy always fails and the LLM always succeeds; at an easy one both do."""
    rows = [
        row(episode, step, episode % 2 == 0, episode % 2 == 1, split)
        for split, start in (("train", 0), ("calibration", 200))
        for episode in range(start, start + 200)
        for step in (0, FIRST_STEP)
    ]
    lost = {"1#3", "201#3"}  # so that the LLM's head has two classes
    outcomes = {row.state_id: row.state_id not in lost for row in rows}
    config = Config(router=RouterConfig(features=["page"], model="logistic"))
    rival = swe_router(config, rows, outcomes)

    def score(step: int, hard: bool) -> float:
        node: Any = SimpleNamespace(
            view=SimpleNamespace(step=step), known={("features", Instruments()): ({"page.hard": float(hard)}, 0.0)}
        )
        return asyncio.run(rival.judged(None, node))[0]  # type: ignore[arg-type]

    assert score(FIRST_STEP, True) > 0.9 and score(FIRST_STEP, False) == pytest.approx(0.5, abs=0.05)
    assert score(FIRST_STEP - 1, True) == 0 and rival.stays == EVER
