from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from r2v.data.episode import Episode, to_line
from r2v.data.store import StoredEpisodes, TrajectoryStore, mend_tail, write_episodes
from r2v.errors import EnvironmentFault, InputError, LeaseConflict
from tests.trust import drawn

Play = Callable[..., Episode]

FILL = """
import resource, sys
from r2v.data.store import TrajectoryStore
if len(sys.argv) > 2:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
store = TrajectoryStore(sys.argv[1])
first = next(store.iter_episodes())
with store.exclusive():
    while True:
        store.append(first)
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of one megabyte."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "r2v-test", str(tmp_path)]
    told = subprocess.run(mount, capture_output=True, text=True, check=False)
    if told.returncode:
        pytest.skip(f"cannot mount a small tmpfs here: {told.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_append_then_read_gives_the_same(tmp_path: Path, play: Play) -> None:
    store = TrajectoryStore(tmp_path / "new" / "t.jsonl")
    episodes = [play(seed=s, perturbation_seed=p) for s in (1, 2) for p in (None, 3)]
    assert len(store) == 0 and store.done_keys() == set()
    with store.exclusive():
        for episode in episodes[:3]:
            store.append(episode)
    store.append(episodes[3])
    assert list(store.iter_episodes()) == list(StoredEpisodes(store.path)) == episodes
    assert len(store) == 4
    assert store.done_keys() == {("t1", 1, None), ("t1", 1, 3), ("t1", 2, None), ("t1", 2, 3)}
    assert list(store.path.parent.iterdir()) == [store.path]


def test_reading_streams(tmp_path: Path, play: Play) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(to_line(play()) + "\nbroken\n")
    episodes = TrajectoryStore(path).iter_episodes()
    assert next(episodes) == play()
    with pytest.raises(InputError, match=r"t\.jsonl:2: "):
        next(episodes)


def test_two_writers_on_one_file_are_refused(tmp_path: Path, play: Play) -> None:
    path = tmp_path / "t.jsonl"
    with TrajectoryStore(path).exclusive(), pytest.raises(LeaseConflict):
        TrajectoryStore(path).append(play())
    assert path.read_bytes() == b""


def test_tail_cut_at_any_byte_of_the_last_three_lines(quick_disk: Path, play: Play) -> None:
    episodes = [play(seed=s, actions=("go",), text="é") for s in range(5)]
    lines = [to_line(episode).encode() + b"\n" for episode in episodes]
    whole = b"".join(lines)
    ends = [sum(map(len, lines[:n])) - 1 for n in range(6)]  # a line without its newline is still whole
    path, aside = quick_disk / "t.jsonl", quick_disk / "t.jsonl.quarantine"
    at_ends = {end + byte for end in ends[2:] for byte in (-1, 0, 1, 2)} & set(range(len(whole)))
    cuts = drawn(range(sum(map(len, lines[:2])), len(whole)), 300, "cuts of a tail")
    for cut in sorted(at_ends.union(cuts)):
        path.write_bytes(whole[:cut])
        good = sum(end <= cut for end in ends[1:])
        assert list(TrajectoryStore(path).iter_episodes(growing=True)) == episodes[:good]
        lost = mend_tail(path)
        assert path.read_bytes() == b"".join(lines[:good])
        fragment = aside.read_bytes()[:-1] if lost else b""
        assert path.read_bytes() + fragment in (whole[:cut], whole[:cut] + b"\n")
        aside.unlink(missing_ok=True)


def test_cut_episode_is_collected_again_once(tmp_path: Path, play: Play) -> None:
    wanted = [play(seed=s) for s in range(4)]
    store = TrajectoryStore(tmp_path / "t.jsonl")
    write_episodes(store.path, wanted[:3])
    os.truncate(store.path, store.path.stat().st_size - 20)
    with store.exclusive():
        done = store.done_keys()
        for episode in wanted:
            if (episode.metadata.task_id, episode.metadata.seed, None) not in done:
                store.append(episode)
    assert list(StoredEpisodes(store.path)) == wanted


@pytest.mark.parametrize("torn", [b"\0" * 5000, b"\0" * 40 + b"\n" + b"\0" * 9, b'{"a":', b"\xc3", b"12\n"])
def test_torn_blocks_go_to_quarantine(tmp_path: Path, play: Play, torn: bytes) -> None:
    path = tmp_path / "t.jsonl"
    write_episodes(path, [play()])
    good = path.read_bytes()
    path.write_bytes(good + torn)
    assert mend_tail(path) == len(torn)
    assert path.read_bytes() == good
    assert path.with_name("t.jsonl.quarantine").read_bytes() == torn + b"\n"
    assert mend_tail(path) == 0


def test_first_line_torn_leaves_an_empty_store(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(b'{"episode_id":"t')
    assert mend_tail(tmp_path / "t.jsonl") == 16
    assert (tmp_path / "t.jsonl").read_bytes() == b""


def test_a_file_that_was_never_a_store_is_left_alone(tmp_path: Path, play: Play) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("dear diary\ntoday\n")
    with pytest.raises(InputError, match="not a trajectories file"):
        TrajectoryStore(path).append(play())
    assert path.read_text() == "dear diary\ntoday\n"


def test_bad_input_names_file_and_line(tmp_path: Path, play: Play) -> None:
    path = tmp_path / "t.jsonl"
    with pytest.raises(InputError, match=r"t\.jsonl: no such"):
        list(StoredEpisodes(path))
    path.touch()
    with pytest.raises(InputError, match="empty"):
        list(StoredEpisodes(path))
    path.write_text(f"{to_line(play())}\n{{}}\n{to_line(play())}\n")
    with pytest.raises(InputError, match=r"t\.jsonl:2: not an episode"):
        list(StoredEpisodes(path))
    path.write_text(f"{to_line(play())}\n{to_line(play())[:-9]}")
    with pytest.raises(InputError, match=r"t\.jsonl:2: the file is cut"):
        list(StoredEpisodes(path))
    path.write_text(f"{to_line(play())}\n{to_line(play())}")
    assert len(list(StoredEpisodes(path))) == 2


def filled(path: Path, *limit: str) -> str:
    command = [sys.executable, "-c", FILL, str(path), *limit]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


@pytest.mark.parametrize("limit", [5000, 5001, 7777])
def test_a_write_that_does_not_fit_is_one_fault_and_no_half_line(tmp_path: Path, play: Play, limit: int) -> None:
    path = tmp_path / "t.jsonl"
    write_episodes(path, [play()])
    line = path.stat().st_size
    assert f"{EnvironmentFault.__name__}: cannot write {path}" in filled(path, str(limit))
    assert path.stat().st_size == limit // line * line
    assert all(episode == play() for episode in list(StoredEpisodes(path)))


def test_full_disk_leaves_every_line_readable(small_disk: Path, play: Play) -> None:
    path = small_disk / "t.jsonl"
    write_episodes(path, [play(text="x" * 10_000)])
    assert "cannot write" in (told := filled(path)) and "No space left" in told
    assert len(list(StoredEpisodes(path))) > 20
    with pytest.raises(EnvironmentFault):
        write_episodes(path, [play(text="y" * 900_000)])
    assert len(list(StoredEpisodes(path))) > 20
