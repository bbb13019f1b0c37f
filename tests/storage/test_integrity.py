"""Every read is verified: each reader hashes, names the file that differs, and the artifact is made again."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from r2v.errors import InputError
from r2v.storage import integrity
from r2v.storage.artifact import JOURNAL, attempt_of, build, find, look, read
from r2v.storage.artifact_manifest import Damaged, json_sha256
from r2v.storage.integrity import (
    Stray,
    cache_folder,
    content_files,
    current_sha256,
    hashed,
    read_hashed,
    set_aside,
    verify,
    verify_file,
)
from tests.storage.test_artifact import make

DAMAGES: dict[str, Callable[[Path], object]] = {
    "a byte": lambda path: path.write_bytes(path.read_bytes()[:-2] + b"?\n"),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:1]),
    "empty": lambda path: path.write_bytes(b""),
    "gone": Path.unlink,
    "folder": lambda path: (path.unlink(), path.mkdir()),
    "link to nothing": lambda path: (path.unlink(), path.symlink_to("nowhere")),
}


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("name", ["data.jsonl", "final/weights", "config.yaml"])
def test_each_door_names_what_was_damaged_and_build_makes_it_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, how: str
) -> None:
    made = make(tmp_path)
    (made.folder / JOURNAL).mkdir()
    (made.folder / JOURNAL / "paid").write_text("a reply")
    DAMAGES[how](made.folder / name)
    for door in (lambda: look(tmp_path, "bc", "k"), lambda: read(made.folder)):
        with pytest.raises(Damaged, match=f"{name} is damaged: .*artifact.json says") as raised:
            door()
        assert raised.value.path == made.folder / name
    with caplog.at_level(logging.WARNING):
        assert find(tmp_path, "bc", "k") is None
    assert [record.message for record in caplog.records if f"{name} is damaged" in record.message]
    assert make(tmp_path) == made
    assert (made.folder / JOURNAL / "paid").read_text() == "a reply"


def test_what_differs_is_said_with_the_beginning_of_both_hashes(tmp_path: Path) -> None:
    made = make(tmp_path)
    recorded = made.files["data.jsonl"]
    (made.folder / "data.jsonl").write_text("other\n")
    now = content_files(made.folder)["data.jsonl"]
    with pytest.raises(Damaged, match=rf"its content is {now[:12]}, \S+ says {recorded[:12]}(?![0-9a-f])"):
        read(made.folder)
    (made.folder / "data.jsonl").unlink()
    with pytest.raises(Damaged, match=rf"it is gone, \S+ says {recorded[:12]}(?![0-9a-f])"):
        read(made.folder)
    (made.folder / "data.jsonl").mkdir()
    with pytest.raises(Damaged, match=rf"it cannot be read \(\w[^)]*\), \S+ says {recorded[:12]}(?![0-9a-f])"):
        read(made.folder)


def test_the_remains_of_a_damaged_attempt_are_not_built_upon(tmp_path: Path) -> None:
    made = make(tmp_path)
    (made.folder / "checkpoint-3").mkdir()
    (made.folder / "data.jsonl").write_text("altered\n")
    with build(tmp_path, "bc", "k", "m:S", "", {}, tmp_path) as work:
        assert not (work.folder / "data.jsonl").exists() and not (work.folder / "checkpoint-3").exists()


def test_a_file_that_nobody_made_is_named_and_can_be_set_aside(tmp_path: Path) -> None:
    made = make(tmp_path)
    (made.folder / "final" / "adapter_config.json").write_text("{}")
    with pytest.raises(Stray, match=r"adapter_config.json is damaged: .*does not name it; move it away") as raised:
        look(tmp_path, "bc", "k")
    assert set_aside(raised.value.path).read_text() == "{}"
    assert look(tmp_path, "bc", "k") == made


def test_an_artifact_under_anothers_name_is_named(tmp_path: Path) -> None:
    shutil.copytree(make(tmp_path).folder, tmp_path / "bc-l")
    with pytest.raises(Damaged, match="its fingerprint is k, it lies where l belongs"):
        look(tmp_path, "bc", "l")


def test_a_file_where_an_attempt_belongs_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "bc-k").write_text("a stranger's")
    with pytest.raises(Damaged, match="no folder of an artifact"):
        look(tmp_path, "bc", "k")
    make(tmp_path)
    assert [path.read_text() for path in tmp_path.glob("bc-k.*.quarantine")] == ["a stranger's"]


def test_an_attempt_is_not_continued_with_a_damaged_input(tmp_path: Path) -> None:
    first = make(tmp_path)
    make(tmp_path, key="l", bc=first)
    assert attempt_of(tmp_path / "bc-l")[1]["bc"].files == first.files
    (first.folder / "final" / "weights").write_bytes(b"\0\2")
    with pytest.raises(InputError, match=r"final/weights is damaged: .* not the file that .* was begun with"):
        attempt_of(tmp_path / "bc-l")


def test_an_input_that_changes_while_it_is_read_finishes_nothing(tmp_path: Path) -> None:
    first = make(tmp_path)
    with pytest.raises(Damaged, match="data.jsonl"), build(tmp_path, "bc", "l", "m:S", "", {"bc": first}, tmp_path):
        (first.folder / "data.jsonl").write_text("other\n")
    assert look(tmp_path, "bc", "l") is None


def test_asked_to_do_it_again_the_journal_is_set_aside_and_not_removed(tmp_path: Path) -> None:
    made = make(tmp_path)
    (made.folder / JOURNAL).mkdir()
    (made.folder / JOURNAL / "paid").write_text("a reply")
    with build(tmp_path, "bc", "k", "m:S", "", {}, tmp_path, again=True) as work:
        assert not (work.folder / JOURNAL).exists()
    assert [path.read_text() for path in made.folder.glob(f"{JOURNAL}-*/paid")] == ["a reply"]


def test_a_volatile_value_of_another_type_is_content(tmp_path: Path) -> None:
    line = '{"metadata":{"run_id":%s},"steps":[{"reply_id":%s}],"wall_time_seconds":%s}\n'
    honest = (('"a"', '"r1"', "1.5"), ('"b"', "null", "null"))
    damaged = (("7", "null", "1.5"), ('"a"', "null", '"1"'), ('"a"', "null", "NaN"), ('"a"', "3", "1.5"))
    hashes = []
    for values in honest + damaged:
        (tmp_path / "data.jsonl").write_text(line % values)
        hashes.append(content_files(tmp_path)["data.jsonl"])
    assert hashes[0] == hashes[1] and len(set(hashes)) == 5


def test_a_whole_artifact_is_whole(tmp_path: Path) -> None:
    verify(make(tmp_path))


def test_a_record_with_a_hash_of_its_own_is_read_as_written_or_named_with_both_hashes(tmp_path: Path) -> None:
    path, record = tmp_path / "setup.json", hashed({"pair": (1, 2), "rate": 0.5})
    path.write_text(json.dumps(record))
    assert read_hashed(path) == {"pair": [1, 2], "rate": 0.5}
    path.write_text(json.dumps({"rate": 0.5}))
    assert read_hashed(path) == {"rate": 0.5}, "a file that people edit has no hash"
    path.write_text(json.dumps({**record, "rate": 0.6}))
    now = json_sha256({"pair": [1, 2], "rate": 0.6})
    with pytest.raises(Damaged, match=f"its content is {now[:12]}, it says {record['sha256'][:12]}(?![0-9a-f])"):
        read_hashed(path)


OTHER = "0" * 64


@pytest.fixture
def settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hash a large file whose change must be noticed; the folder of hashes is the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(integrity, "LARGE", 10)
    monkeypatch.setattr(integrity, "SETTLED_NS", 0)
    path = tmp_path / "weights"
    path.write_bytes(b"0123456789")
    assert current_sha256(path) == hashlib.sha256(b"0123456789").hexdigest()
    return path


def forget() -> None:
    """Clear the memory, as a new process."""
    integrity._hashes.clear()


def test_a_large_file_is_hashed_once_for_all_processes(settled: Path) -> None:
    (kept,) = cache_folder().iterdir()
    kept.write_text(OTHER)  # another process's cache is trusted
    forget()
    assert current_sha256(settled) == OTHER


def test_damage_is_never_declared_by_a_remembered_hash(settled: Path) -> None:
    (kept,) = cache_folder().iterdir()
    kept.write_text(OTHER)
    forget()
    verify_file(settled, hashlib.sha256(b"0123456789").hexdigest())


@pytest.mark.parametrize("text", ["", "ab", "z" * 64, "\0"])
def test_a_kept_hash_that_is_none_is_passed_over(settled: Path, text: str) -> None:
    (kept,) = cache_folder().iterdir()
    kept.write_text(text)
    forget()
    assert current_sha256(settled) != text


def test_a_small_file_is_kept_in_memory_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(integrity, "SETTLED_NS", 0)
    (tmp_path / "small").write_text("x")
    current_sha256(tmp_path / "small")
    assert not cache_folder().exists()


def test_a_change_of_the_same_size_and_time_is_seen(settled: Path) -> None:
    before = settled.stat()
    settled.write_bytes(b"9876543210")
    os.utime(settled, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert current_sha256(settled) == hashlib.sha256(b"9876543210").hexdigest()


def test_a_file_written_just_now_is_read_again(tmp_path: Path) -> None:
    """Its times may not show the next change: some file systems count in seconds."""
    path = tmp_path / "young"
    path.write_text("a")
    current_sha256(path)
    assert integrity._key(path) not in integrity._hashes


def test_a_file_whose_time_lies_ahead_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change until then may leave its time as it is."""
    monkeypatch.setattr(integrity, "SETTLED_NS", 0)
    path = tmp_path / "ahead"
    path.write_text("a")
    os.utime(path, ns=(2**62, 2**62))
    current_sha256(path)
    assert integrity._key(path) not in integrity._hashes
    os.utime(path, ns=(0, 0))
    current_sha256(path)
    assert integrity._key(path) in integrity._hashes, "and one of long ago is remembered"


@pytest.mark.parametrize(("size", "kept"), [(9, 0), (10, 1), (11, 1)])
def test_a_file_is_large_by_its_own_size(size: int, kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(integrity, "LARGE", 10)
    monkeypatch.setattr(integrity, "SETTLED_NS", 0)
    (tmp_path / "data").write_bytes(b"x" * size)
    current_sha256(tmp_path / "data")
    assert len(list(cache_folder().glob("*"))) == kept


def test_a_home_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(integrity, "LARGE", 1)
    monkeypatch.setattr(integrity, "SETTLED_NS", 0)
    (tmp_path / "data").write_text("x")
    assert current_sha256(tmp_path / "data") == hashlib.sha256(b"x").hexdigest()
