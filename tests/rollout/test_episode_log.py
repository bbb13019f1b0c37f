"""A run's own file as the episode log: read while it grows, written by one process, resumed by the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from r2v.data.episode import Episode, to_line
from r2v.data.store import DoneKey, StoredEpisodes
from r2v.envs.chain import ChainBenchmark
from r2v.rollout.episode_log import EpisodeLog, play_into_log
from r2v.rollout.session import EpisodeSpec
from r2v.rollout.work_queue import Cell
from r2v.storage.artifact import Work
from tests.chains import chain_stage, specs

CHAIN = ChainBenchmark(num_tasks=9, length=2)
SPECS = specs(CHAIN, 9)
PLAYED = chain_stage(CHAIN, (0.7, None), 0.9)
EPISODES = PLAYED.play(SPECS, PLAYED.small)
KEYS: dict[DoneKey, str] = {
    (e.metadata.task_id, e.metadata.seed, None): f"key-{number}" for number, e in enumerate(EPISODES)
}


def log(path: Path, write: Any = None) -> EpisodeLog:
    return EpisodeLog(path.parent / "outputs/.episodes", "collect-1", path, KEYS, write)


class Collection:
    """A run's file in a checkout, and the tasks played by each process."""

    def __init__(self, root: Path) -> None:
        self.path, self.root, self.played = root / "run/trajectories.jsonl", root, list[str]()
        self.path.parent.mkdir()

    def write(self, episode: Episode) -> None:
        with self.path.open("a") as file:
            file.write(to_line(episode) + "\n")

    def play(self, who: str, *, helping: bool, lacking: int = 0) -> None:
        """Play as this process; the last `lacking` questions stay open."""

        async def one(spec: EpisodeSpec) -> list[Episode]:
            self.played.append(who)
            unanswered = spec in SPECS[len(SPECS) - lacking :]
            return [] if unanswered else [await PLAYED.world.start(spec).finish(PLAYED.small, PLAYED.waves)]

        cell = Cell(what="collect", specs=SPECS, play=one, kinds=(Episode,))
        folder = self.root / "outputs/.artifacts/collect-1"
        work = Work(folder=folder, fingerprint="1", inputs={}, root=self.root, helping=helping)
        play_into_log(cell, self.path, work, PLAYED.waves, 2, None if helping else self.write)

    def cached(self) -> list[Path]:
        return list((self.root / "outputs/.episodes/collect-1").rglob("*.jsonl"))


def test_what_is_added_to_the_file_is_found_once_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.jsonl"
    plays = log(path)
    assert list(plays.added()) == []
    lines = [to_line(episode).encode() + b"\n" for episode in EPISODES[:3]]
    path.write_bytes(lines[0] + b'{"metadata": 3}\n[]\n\xff\n' + lines[1] + lines[2][:-9])
    found = list(plays.added())
    assert [key for key, _ in found] == ["key-0", "key-1"] and plays.logged == {"key-0", "key-1"}
    (((_, name, offset, _),), *_) = [records for key, records in found if key == "key-1"]
    assert path.with_name(name).read_bytes()[offset:].startswith(lines[1])
    with path.open("ab") as file:
        file.write(lines[2][-9:])
    assert [key for key, _ in plays.added()] == ["key-2"] and list(plays.added()) == []


def test_a_helper_s_plays_are_taken_over_and_none_is_played_twice(tmp_path: Path) -> None:
    run = Collection(tmp_path)
    run.write(EPISODES[4])
    run.play("helper", helping=True)
    assert len(run.played) == 8 and len(list(StoredEpisodes(run.path))) == 1, "a helper writes nothing into the run"
    run.play("main", helping=False)
    assert run.played == ["helper"] * 8
    assert sorted(map(to_line, list(StoredEpisodes(run.path)))) == sorted(map(to_line, EPISODES))
    assert run.cached() == [], "no second copy is left"


def test_what_got_no_answer_is_written_nowhere_and_asked_again(tmp_path: Path) -> None:
    run = Collection(tmp_path)
    run.play("helper", helping=True, lacking=3)
    run.play("main", helping=False, lacking=3)
    assert len(list(StoredEpisodes(run.path))) == 6 and run.played.count("main") == 3
    run.play("again", helping=False)
    assert run.played.count("again") == 3
    assert sorted(map(to_line, list(StoredEpisodes(run.path)))) == sorted(map(to_line, EPISODES))


def test_only_the_collecting_process_puts_episodes_into_the_run(tmp_path: Path) -> None:
    written: list[Any] = []
    path = tmp_path / "trajectories.jsonl"
    helper = log(path)
    helper.add("block", "0" * 32, EPISODES[:1])
    assert "0" * 32 in helper and not helper.logged
    helper.add("block", "key-0", [])
    log(path, written.append).add("block", "key-0", EPISODES[:1])
    assert "key-0" not in helper and written == EPISODES[:1]
    assert len(list(tmp_path.rglob("*.jsonl"))) == 1, "what the run has is in no other file"
