"""Hashes are remembered as long as nothing about their file has changed, and large ones by other processes too."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from r2v.storage import hash_cache
from r2v.storage.hash_cache import cache_folder, current_sha256
from r2v.storage.integrity import verify_file

OTHER = "0" * 64


@pytest.fixture
def settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A large file whose change nobody could miss, hashed; the folder of hashes is the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(hash_cache, "LARGE", 10)
    monkeypatch.setattr(hash_cache, "SETTLED_NS", 0)
    path = tmp_path / "weights"
    path.write_bytes(b"0123456789")
    assert current_sha256(path) == hashlib.sha256(b"0123456789").hexdigest()
    return path


def forget() -> None:
    """As a new process."""
    hash_cache._known.clear()


def test_a_large_file_is_hashed_once_for_all_processes(settled: Path) -> None:
    (kept,) = cache_folder().iterdir()
    kept.write_text(OTHER)  # what another process has left is believed
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
    monkeypatch.setattr(hash_cache, "SETTLED_NS", 0)
    (tmp_path / "small").write_text("x")
    current_sha256(tmp_path / "small")
    assert not cache_folder().exists()


def test_a_change_of_the_same_size_and_time_is_seen(settled: Path) -> None:
    before = settled.stat()
    settled.write_bytes(b"9876543210")
    os.utime(settled, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert current_sha256(settled) == hashlib.sha256(b"9876543210").hexdigest()


def test_a_file_written_just_now_is_read_again(tmp_path: Path) -> None:
    """Its times may not tell the next change: some file systems count in seconds."""
    path = tmp_path / "young"
    path.write_text("a")
    current_sha256(path)
    assert hash_cache._key(path) not in hash_cache._known


def test_a_file_whose_time_lies_ahead_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change until then may leave its time as it is."""
    monkeypatch.setattr(hash_cache, "SETTLED_NS", 0)
    path = tmp_path / "ahead"
    path.write_text("a")
    os.utime(path, ns=(2**62, 2**62))
    current_sha256(path)
    assert hash_cache._key(path) not in hash_cache._known
    os.utime(path, ns=(0, 0))
    current_sha256(path)
    assert hash_cache._key(path) in hash_cache._known, "and one of long ago is remembered"


@pytest.mark.parametrize(("size", "kept"), [(9, 0), (10, 1), (11, 1)])
def test_a_file_is_large_by_its_own_size(size: int, kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(hash_cache, "LARGE", 10)
    monkeypatch.setattr(hash_cache, "SETTLED_NS", 0)
    (tmp_path / "data").write_bytes(b"x" * size)
    current_sha256(tmp_path / "data")
    assert len(list(cache_folder().glob("*"))) == kept


def test_a_home_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(hash_cache, "LARGE", 1)
    monkeypatch.setattr(hash_cache, "SETTLED_NS", 0)
    (tmp_path / "data").write_text("x")
    assert current_sha256(tmp_path / "data") == hashlib.sha256(b"x").hexdigest()
