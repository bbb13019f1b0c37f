"""Once an artifact is finished its episodes lie in its own files; the cache notes where, and keeps the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from r2v.data.episode import Episode, to_line
from r2v.envs.chain import ChainBenchmark
from r2v.rollout.blocks import BlockPlayer
from r2v.rollout.cells import Cell
from r2v.rollout.episode_cache import EpisodeCache, forget_finished
from r2v.rollout.play_lines import BrokenPlay
from r2v.rollout.session import EpisodeSpec
from r2v.rollout.settling import settle
from tests.chains import chain_stage, specs

NAME = "evaluate-0123456789abcdef"
FAULT, SMALL = "f" * 32, "e" * 32


@pytest.fixture
def finished(tmp_path: Path) -> tuple[Cell, list[Episode]]:
    """A project whose attempt has played a cell, written it as its file, and settled."""
    on = chain_stage(ChainBenchmark(num_tasks=6, length=2), (0.7, None), 0.9)

    async def play(spec: EpisodeSpec) -> list[Episode]:
        return [await on.world.start(spec).finish(on.small, on.waves)]

    cell = Cell(what="slm_only", specs=specs(ChainBenchmark(num_tasks=6, length=2), 6), play=play, kinds=(Episode,))
    cache = EpisodeCache(tmp_path / "outputs/.episodes", NAME)
    player = BlockPlayer(on.waves, cache, 1000)
    player.play([cell])
    cache.add("evaluation-0000", FAULT, [BrokenPlay(reason="gone")])
    cache.add("evaluation-0000", SMALL, [BrokenPlay(reason="x"), BrokenPlay(reason="y")])
    cache.close()
    episodes = [episode for (episode,) in player.records(cell)]
    artifact = tmp_path / "outputs/.artifacts" / NAME / "episodes"
    artifact.mkdir(parents=True)
    (artifact / "slm_only.jsonl").write_text("".join(to_line(episode) + "\n" for episode in reversed(episodes)))
    settle(tmp_path, NAME, ["episodes/slm_only.jsonl", "setup.json"])
    return cell, episodes


def read(root: Path, cell: Cell, own: str = "evaluate-ffffffffffffffff") -> list[Episode | None]:
    cache = EpisodeCache(root / "outputs/.episodes", own)
    found = [cache.read(key, cell.kinds) for key in cell.play_keys()]
    return [None if records is None else records[0] for records in found]


def test_every_episode_is_kept_once_and_found_by_anybody(tmp_path: Path, finished: tuple[Cell, list[Episode]]) -> None:
    cell, episodes = finished
    folder = tmp_path / "outputs/.episodes" / NAME
    assert sorted(path.name for path in folder.iterdir()) == [".r2v", "published.json"], (
        "what a fault ended is kept for nobody"
    )
    assert read(tmp_path, cell) == episodes == read(tmp_path, cell, NAME)


def test_settling_again_changes_nothing(tmp_path: Path, finished: tuple[Cell, list[Episode]]) -> None:
    folder = tmp_path / "outputs/.episodes" / NAME
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    settle(tmp_path, NAME, ["episodes/slm_only.jsonl"])
    cache = EpisodeCache(tmp_path / "outputs/.episodes", NAME)
    key = finished[0].play_keys()[0]
    cache.add("again", key, [finished[1][0]])
    cache.close()
    settle(tmp_path, NAME, ["episodes/slm_only.jsonl"])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("lies_as", ["a link", "a folder without a marker"])
def test_files_in_a_folder_that_r2v_did_not_mark_are_kept(
    tmp_path: Path, lies_as: str, finished: tuple[Cell, list[Episode]]
) -> None:
    other, mine = "evaluate-fedcba9876543210", tmp_path / "outputs/.episodes/evaluate-fedcba9876543210"
    mine = tmp_path / "home" if lies_as == "a link" else mine
    mine.mkdir()
    (mine / "measured.jsonl").write_text("{}\n")
    if lies_as == "a link":
        (tmp_path / "outputs/.episodes" / other).symlink_to(mine)
    settle(tmp_path, other, [])
    EpisodeCache(tmp_path / "outputs/.episodes", other).forget()
    (tmp_path / "outputs/.artifacts" / other).mkdir()
    (tmp_path / "outputs/.artifacts" / other / "artifact.json").write_text("{}")
    forget_finished(tmp_path, other)
    (aside,) = (tmp_path / "outputs/.episodes").glob("*.quarantine")
    assert (aside / "measured.jsonl").read_text() == "{}\n"


def test_an_episode_of_an_altered_artifact_is_as_good_as_not_played(
    tmp_path: Path, finished: tuple[Cell, list[Episode]], caplog: pytest.LogCaptureFixture
) -> None:
    cell, episodes = finished
    path = tmp_path / "outputs/.artifacts" / NAME / "episodes/slm_only.jsonl"
    text = path.read_bytes()
    path.write_bytes(text.replace(b'"success":true', b'"success":true ', 1))
    with caplog.at_level("WARNING"):
        found = read(tmp_path, cell)
    assert None in found and all(one in (None, two) for one, two in zip(found, episodes, strict=True))
    assert sum("not what was published" in message for message in caplog.messages) == 1
    path.unlink()
    assert read(tmp_path, cell) == [None] * 6


def test_a_damaged_list_is_named_and_is_none(
    tmp_path: Path, finished: tuple[Cell, list[Episode]], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "outputs/.episodes" / NAME / "published.json"
    path.write_bytes(path.read_bytes().replace(b"slm_only", b"llm_only", 1))
    with caplog.at_level("WARNING"):
        assert read(tmp_path, finished[0]) == [None] * 6
    assert any("published.json" in message for message in caplog.messages)
