"""Environments that share state: a task that changes a site has it to itself, readers share it, in every process."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from r2v.config import RolloutConfig
from r2v.data.episode import Episode
from r2v.envs.chain import ChainBenchmark
from r2v.errors import UsageError
from r2v.llm.waves import Waves
from r2v.rollout import sites
from r2v.rollout.counterfactual import play_oracle
from r2v.rollout.sites import SitePool
from r2v.storage.lease import holder, lease
from tests.chains import Stage, specs, stage
from tests.counted import elsewhere, straight_on
from tests.shared_sites import LoopbackSite, SharedShop


def shared_stage(shop: SharedShop, root: Path, *names: str, width: int = 16, llm: Any = straight_on) -> Stage:
    waves = Waves(workers=8, max_conversations=width)
    on = stage(shop, straight_on, llm, waves=waves)
    pool = SitePool.of(RolloutConfig(sites=[*names]), shop, root)
    return replace(on, world=replace(on.world, sites=pool))


def leases(root: Path) -> list[Path]:
    return [path for path in (root / "outputs/.sites").glob("*.lease") if holder(path) is not None]


@pytest.mark.parametrize("names", [(), ("a",), ("a", "b", "http://c:8080/")])
def test_who_changes_a_site_is_alone_on_it_and_readers_are_as_many_as_it_carries(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    shop = SharedShop()
    on = shared_stage(shop, tmp_path, *names)
    episodes = on.play(specs(shop, 24), on.small)
    assert all(episode.success for episode in episodes)
    assert set(shop.sites) == set(names or ["own"])
    for site in shop.sites.values():
        assert site.overlaps == [] and site.most_readers <= 2 and (site.readers, site.writers) == (0, 0)
    assert sorted(task for site in shop.sites.values() for task in site.visits) == [t.task_id for t in shop.tasks()]
    assert leases(tmp_path) == []


def test_the_same_episodes_wherever_they_are_played(tmp_path: Path) -> None:
    found: list[list[Episode]] = []
    for names in ((), ("a", "b")):
        shop = SharedShop()
        on = shared_stage(shop, tmp_path, *names)
        found.append(on.play(specs(shop, 24), on.small))
    assert found[0] == found[1]


def test_readers_do_not_starve_who_changes_the_site(tmp_path: Path) -> None:
    """First come, first served: the second task changes the site and is played before the fourth, a reader."""
    shop = SharedShop(num_tasks=6, per_site=2)
    on = shared_stage(shop, tmp_path)
    some = specs(shop, 6)
    some = [some[1], some[0], some[2], some[4]]
    on.play(some, on.small)
    order = shop.sites["own"].visits
    assert order.index("t-00") < order.index("t-04")


def test_a_branch_lives_where_its_episode_waits(tmp_path: Path) -> None:
    """An oracle's branches need no second place: with one place in all it would wait for itself."""
    shop = SharedShop(num_tasks=3, per_site=1)
    on = shared_stage(shop, tmp_path, llm=elsewhere)
    readers = [spec for spec in specs(shop, 3) if not spec.task.mutates]
    episodes = on.waves.run(
        partial(play_oracle, on.world, spec, slm=on.small, llm=on.large, waves=on.waves) for spec in readers
    )
    assert [episode.success for episode in episodes] == [True, True]
    assert len(shop.sites["own"].visits) > 2, "branches were played"


def test_a_site_that_another_process_holds_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "_LOOK_AGAIN", 0.01)
    shop = SharedShop(num_tasks=6)
    on = shared_stage(shop, tmp_path, "a", "b")
    with lease(tmp_path / "outputs/.sites/a.lease"):
        on.play(specs(shop, 6), on.small)
    assert set(shop.sites) == {"b"}


def test_where_all_sites_are_held_one_that_comes_free_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "_LOOK_AGAIN", 0.01)
    shop, others = SharedShop(num_tasks=3), ExitStack()
    others.enter_context(lease(tmp_path / "outputs/.sites/a.lease"))
    on = shared_stage(shop, tmp_path, "a")

    async def comes_free() -> None:
        await on.waves.world(others.close)

    plays = [partial(on.world.start(spec).finish, on.small, on.waves) for spec in specs(shop, 3)]
    *episodes, _ = on.waves.run([*plays, comes_free])
    assert all(isinstance(one, Episode) and one.success for one in episodes) and leases(tmp_path) == []


def test_an_exception_gives_every_place_and_lease_back(tmp_path: Path) -> None:
    class Broken(Exception):
        pass

    shop = SharedShop(num_tasks=9)
    on = shared_stage(shop, tmp_path, "a", "b")

    async def fails() -> None:
        await on.waves.world(int)
        raise Broken

    plays = [partial(on.world.start(spec).finish, on.small, on.waves) for spec in specs(shop, 9)]
    with pytest.raises(Broken):
        on.waves.run([*plays, fails])
    assert leases(tmp_path) == []
    assert all((site.readers, site.writers) == (0, 0) for site in shop.sites.values())
    assert all(episode.success for episode in on.play(specs(shop, 9), on.small)), "the places are free again"


def test_worlds_that_share_nothing_have_no_places(tmp_path: Path) -> None:
    chain = ChainBenchmark(num_tasks=1)
    assert SitePool.of(RolloutConfig(), chain, tmp_path) is None
    with pytest.raises(
        UsageError, match=r"rollout\.sites: chain takes no sites \(it says parallel=true, and lacks make_at"
    ):
        SitePool.of(RolloutConfig(sites=["a"]), chain, tmp_path)


def test_sites_of_every_spelling_have_leases_of_their_own() -> None:
    names = ["a", "http://a:1/", "http://a:2/", "http:/a:1/", "A b", "a" * 300, "a" * 301, "../x", "é"]
    labels = [sites._label(name) for name in names]
    assert len(set(labels)) == len(names) and labels[0] == "a"
    assert all("/" not in label and not label.startswith(".") and len(label) < 80 for label in labels)


def test_a_loopback_site_would_notice() -> None:
    site, (buys, looks, *_) = LoopbackSite(), SharedShop(num_tasks=2).tasks()
    site.enter(buys)
    site.enter(looks)
    assert site.overlaps == ["t-01"]
