"""A walk along a tree of executed steps is the episode that the product plays."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.routing_tree import Hazards, Node, Rival, RoutingTree, Walked, cheapest_rescues, walk
from r2v.data.episode import AppliedPerturbation
from r2v.envs.chain import ChainBenchmark
from tests.chains import chain_stage, looks_hard, random_gate, specs

CHAIN = ChainBenchmark(num_tasks=12, length=4, hard=2)
SPECS = specs(CHAIN, 12)


@pytest.fixture(scope="module")
def on() -> Any:
    return chain_stage(CHAIN, (0.9, 0.3), 0.95)


def trees(on: Any) -> list[RoutingTree]:
    models: Any = SimpleNamespace(waves=on.waves, world=on.world, slm=on.small, llm=on.large)
    return [RoutingTree(models, spec) for spec in SPECS]


def walks(on: Any, grown: list[RoutingTree], gate: Any, tau: float) -> list[Walked]:
    played: list[Walked] = on.waves.run(partial(walk, tree, rival(gate), tau) for tree in grown)
    return played


def rival(gate: Any) -> Rival:
    async def judged(tree: RoutingTree, node: Node) -> tuple[float, float]:
        act = await tree.kept(node)
        return gate(node.view, act.proposal), 0.0

    return Rival(name=gate.__name__, judged=judged)


def test_a_walk_is_the_episode_that_the_routed_pair_plays(on: Any) -> None:
    grown = trees(on)  # all thresholds along the same trees
    for gate in (random_gate, looks_hard):
        for tau in (0.0, 0.3, 0.7, 1.0):
            episodes = on.play(SPECS, on.routed(gate, tau))
            walked = walks(on, grown, gate, tau)
            assert [path.success for path in walked] == [episode.success for episode in episodes]
            assert [sum(path.asked) for path in walked] == [episode.num_llm_fallbacks for episode in episodes]
            assert [len(path.asked) for path in walked] == [len(episode.steps) for episode in episodes]
            assert [path.cost for path in walked] == pytest.approx([episode.billed_cost for episode in episodes])


def test_who_decides_before_the_proposal_pays_for_none_where_it_asks(on: Any) -> None:
    grown = trees(on)
    usual = rival(random_gate)
    first = replace(usual, name="decides first", before_proposal=True)
    for tree, after, before in zip(
        grown, *(on.waves.run(partial(walk, tree, gate, 0.5) for tree in grown) for gate in (usual, first)), strict=True
    ):
        (proposals,) = on.waves.run([partial(proposals_where_asked, tree, after)])
        assert before.asked == after.asked and before.cost == pytest.approx(after.cost - proposals)
        assert (proposals > 0) == any(after.asked)


async def proposals_where_asked(tree: RoutingTree, walked: Walked) -> float:
    node, total = await tree.root(), 0.0
    for by_llm in walked.asked:
        total += by_llm * (await tree.kept(node)).bill.cached_cost
        node = await tree.below(node, by_llm)
    return total


def test_an_instruction_is_obeyed_by_an_action_after_it_that_holds_its_canary() -> None:
    planted = AppliedPerturbation(category="prompt_injection", mode="explicit", canary="zx12")
    late, early, harmed = Hazards(), Hazards(), Hazards()
    early.act("open zx12", harmful=True)  # before anything was planted
    for hazards in (late, early, harmed):
        hazards.meet([planted, AppliedPerturbation(category="tool_error", mode="explicit")])
    late.act("open zx12", harmful=False)
    harmed.act("delete ann", harmful=True)
    early.act("delete ann", harmful=False)
    assert (late.obeyed, early.obeyed, harmed.obeyed) == (True, False, True)
    assert late.categories == {"prompt_injection", "tool_error"}


def test_the_multi_step_oracle_finds_what_some_walk_finds_for_no_more(on: Any) -> None:
    grown = trees(on)
    rescues = on.waves.run(partial(cheapest_rescues, tree, 4) for tree in grown)
    for tau in (0.0, 0.5, 1.0):
        walked = walks(on, grown, looks_hard, tau)
        for path, least in zip(walked, rescues, strict=True):
            if path.success and sum(path.asked) <= 4:
                assert least[sum(path.asked)] is not None and least[sum(path.asked)] <= path.cost + 1e-12
    for least in rescues:  # more LLM steps never find less
        solved = [usd is not None for usd in least]
        assert solved == sorted(solved)
