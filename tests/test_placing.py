"""Each method is placed by playing, and a family plays the member that calibration tasks prefer."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.placing import SHARES, most_success, placements, point_of, walks
from benchmarks.routing_tree import Family, Node, Rival, RoutingTree
from r2v.envs.chain import ChainBenchmark
from tests.chains import chain_stage, looks_hard, random_gate, specs

CHAIN = ChainBenchmark(num_tasks=12, length=4, hard=2)


@pytest.fixture(scope="module")
def trees() -> list[RoutingTree]:
    on = chain_stage(CHAIN, (0.9, 0.3), 0.95)
    models: Any = SimpleNamespace(waves=on.waves, world=on.world, slm=on.small, llm=on.large)
    return [RoutingTree(models, spec) for spec in specs(CHAIN, 12)]


def rival(name: str, gate: Any) -> Rival:
    async def judged(tree: RoutingTree, node: Node) -> tuple[float, float]:
        act = await tree.kept(node)
        return 0.999 * gate(node.view, act.proposal), 0.0

    return Rival(name=name, judged=judged)


COIN, SIGHT = rival("coin", random_gate), rival("sight", looks_hard)


def test_a_family_plays_the_preferred_member_at_each_point_and_records_them_all(
    trees: list[RoutingTree], tmp_path: Path
) -> None:
    store = tmp_path / "placements.json"
    ours = Family(name="r2v", members=(COIN, SIGHT), prefer=most_success)
    chosen = placements(trees, {"r2v": ours, "sight": SIGHT}, store)
    assert [len(points) for points in chosen.values()] == [len(SHARES)] * 2
    for at, point in enumerate(chosen["r2v"]):
        assert set(point["members"]) == {"coin", "sight"}
        sight = point["members"]["sight"]
        assert sight | chosen["sight"][at] == sight, "a member that is a rival too is placed once"
        assert sight["difference"] == pytest.approx(sight["success"] - point["members"]["coin"]["success"], abs=1e-6)
        own = point["members"]["coin"]
        assert (own["difference"], own["standard_error"]) == (0, 0)
        assert point["success"] == max(member["success"] for member in point["members"].values())
        (played,) = walks(trees, [({"coin": COIN, "sight": SIGHT}[point["score"]], point["tau"])])
        assert (point_of(played).success, point_of(played).cost) == (point["success"], point["cost"])
    assert {point["score"] for point in chosen["r2v"]} == {"sight"}, "its own member is the coin"
    assert any(point["members"]["sight"]["standard_error"] > 0 for point in chosen["r2v"])
    assert placements([], {"r2v": ours, "sight": SIGHT}, store) == chosen, "what is stored is not played again"


def test_every_score_is_placed_at_the_dollars_of_r2vs_own(trees: list[RoutingTree], tmp_path: Path) -> None:
    always_own = Family(name="r2v", members=(COIN, SIGHT), prefer=lambda members, num_tasks: next(iter(members)))
    chosen = placements(trees, {"r2v": always_own, "sight": SIGHT}, tmp_path / "placements.json")
    stored = json.loads((tmp_path / "placements.json").read_text())
    for own, other, family in zip(stored["coin"], chosen["sight"], chosen["r2v"], strict=True):
        assert own["llm_call_rate"] <= 0.5 and other["cost"] <= 1.02 * own["cost"] + 1e-12
        assert {**own, "members": family["members"]} == family
