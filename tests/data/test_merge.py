from __future__ import annotations

import itertools
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from r2v.data.episode import Episode
from r2v.data.merge import Source, merge, unique
from r2v.data.store import StoredEpisodes, write_episodes
from r2v.errors import InputError, UsageError
from r2v.storage.files import content_sha256

Play = Callable[..., Episode]

MERGE = """
import sys
from pathlib import Path
from r2v.data.merge import Source, merge
merge([Source(run_id="a", path=Path(sys.argv[1]))], Path(sys.argv[2]))
"""


def source(folder: Path, run_id: str, episodes: Iterable[Episode]) -> Source:
    write_episodes(folder / f"{run_id}.jsonl", episodes)
    return Source(run_id=run_id, path=folder / f"{run_id}.jsonl")


def meta(path: Path) -> dict[str, object]:
    record: dict[str, object] = json.loads(path.with_name(f"{path.name}.meta.json").read_text())
    return record


@pytest.fixture
def two(tmp_path: Path, play: Play) -> tuple[Source, Source]:
    """Make two runs that share one episode."""
    shared = {"task": "t1", "actions": ("go",)}
    a = [play(**shared, run_id="a"), play("t2", run_id="a")]
    b = [play(**shared, run_id="b", seed=5), play("t3", run_id="b"), play("t2", run_id="b", actions=("other",))]
    return source(tmp_path, "a", a), source(tmp_path, "b", b)


def test_hazard7_duplicates_go_once_and_are_reported(tmp_path: Path, two: tuple[Source, Source]) -> None:
    out = tmp_path / "out.jsonl"
    merged = list(merge(two, out).iter_episodes())
    assert [(e.metadata.run_id, e.metadata.task_id) for e in merged] == [
        ("a", "t1"),
        ("a", "t2"),
        ("b", "t3"),
        ("b", "t2"),
    ]
    about = meta(out)
    assert about["duplicates"] == [{"kept": "a", "dropped": "b", "count": 1}]
    assert about["rows"] == 4 and about["sha256"] == content_sha256(out)
    assert about["inputs"] == [
        {"run_id": s.run_id, "path": s.path.as_posix(), "sha256": content_sha256(s.path), "rows": n}
        for s, n in zip(two, (2, 3), strict=True)
    ]


def test_merge_is_idempotent_and_independent_of_order(tmp_path: Path, two: tuple[Source, Source]) -> None:
    paths = [tmp_path / f"{n}.out.jsonl" for n in range(4)]
    for path, sources in zip(paths, (two, two, two[::-1]), strict=False):
        merge(sources, path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert (
        paths[0].with_name("0.out.jsonl.meta.json").read_bytes()
        == paths[1].with_name("1.out.jsonl.meta.json").read_bytes()
    )
    forward, backward = ({e.dedup_key for e in list(StoredEpisodes(path))} for path in (paths[0], paths[2]))
    assert forward == backward
    merge([Source(run_id="merged", path=paths[0])], paths[3])
    assert paths[3].read_bytes() == paths[0].read_bytes()


def test_ids_stay_unique_whatever_the_order(tmp_path: Path, two: tuple[Source, Source]) -> None:
    names = []
    for order in itertools.permutations(two):
        ids = [e.episode_id for e in merge(order, tmp_path / "out.jsonl").iter_episodes()]
        assert len(set(ids)) == len(ids) == 4
        names.append({name for name in ids if name.startswith("t2/s1/a")})
    assert names[0] == names[1] and len(names[0]) == 2


def test_without_deduplication_everything_stays_under_ids_of_its_own(tmp_path: Path, play: Play) -> None:
    sources = [source(tmp_path, name, [play()]) for name in "abc"]
    merged = list(StoredEpisodes(merge(sources, tmp_path / "out.jsonl", deduplicate=False).path))
    assert len({e.episode_id for e in merged}) == len(merged) == 3


def test_perturbed_twins_and_equal_actions_elsewhere_survive(tmp_path: Path, play: Play) -> None:
    episodes = [play(), play("t2"), play(perturbation_seed=1), play(perturbation_seed=2)]
    assert list(StoredEpisodes(merge([source(tmp_path, "a", episodes)], tmp_path / "out.jsonl").path)) == episodes


@pytest.mark.parametrize(("keep", "winners"), [("first", ["a", "a", "a"]), ("best", ["b", "b", "a"])])
def test_which_duplicate_stays(tmp_path: Path, play: Play, keep: str, winners: list[str]) -> None:
    def run(name: str, *scores: tuple[bool, float]) -> Source:
        return source(
            tmp_path,
            name,
            [play(f"t{i}", run_id=name, success=ok, partial_score=score) for i, (ok, score) in enumerate(scores)],
        )

    sources = [run("a", (False, 0.9), (True, 0.5), (True, 1.0)), run("b", (True, 0.0), (True, 0.6), (True, 1.0))]
    merged = list(StoredEpisodes(merge(sources, tmp_path / "out.jsonl", keep=keep).path))  # type: ignore[arg-type]
    assert [e.metadata.run_id for e in sorted(merged, key=lambda e: e.metadata.task_id)] == winners


def test_an_unknown_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="first, best"):
        merge([], tmp_path / "out.jsonl", keep="last")  # type: ignore[arg-type]


def test_unique_is_the_merge_without_a_file(tmp_path: Path, two: tuple[Source, Source]) -> None:
    together = [e for s in two for e in list(StoredEpisodes(s.path))]
    assert [e.dedup_key for e in unique(together)] == [
        e.dedup_key for e in list(StoredEpisodes(merge(two, tmp_path / "out.jsonl").path))
    ]


def test_hazard8_a_bad_source_or_a_kill_leaves_the_old_file(tmp_path: Path, play: Play) -> None:
    out = tmp_path / "out.jsonl"
    merge([source(tmp_path, "old", [play()])], out)
    before = out.read_bytes()
    big = source(tmp_path, "a", (play(seed=s, actions=(str(s),)) for s in range(3000)))
    process = subprocess.Popen([sys.executable, "-c", MERGE, str(big.path), str(out)])
    while not list(tmp_path.glob(".out.jsonl.*.tmp")):
        assert process.poll() is None
    process.kill()
    process.wait()
    assert out.read_bytes() == before
    with big.path.open("a") as file:
        file.write("broken\n")
    with pytest.raises(InputError, match=r"a\.jsonl:3001"):
        merge([big], out)
    assert out.read_bytes() == before


def test_hazard10_evaluation_tasks_are_warned_of(tmp_path: Path, play: Play, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        merge([source(tmp_path, "a", [play(split="train")])], tmp_path / "out.jsonl")
        assert not caplog.records
        episodes = [play("x", split="evaluation"), play("t0", split=None)]
        merge([source(tmp_path, "b", episodes)], tmp_path / "o.jsonl")
    assert "episodes=1 run=b" in caplog.text
