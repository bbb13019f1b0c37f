"""Errors of a file system: harmless ones, temporary ones, and a full disk."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from r2v.errors import UNSTEADY, FileSystemFault, failure_of
from r2v.storage.file_system import free_space, optional, share, steadily, umask, walk


def failing(times: int, number: int, path: Path) -> list[OSError]:
    return [OSError(number, os.strerror(number), str(path)) for _ in range(times)]


@pytest.mark.parametrize("number", UNSTEADY)
def test_a_failure_that_passes_is_tried_again(number: int, tmp_path: Path) -> None:
    ahead = failing(3, number, tmp_path)

    def read() -> str:
        if ahead:
            raise ahead.pop()
        return "read"

    assert steadily(read, pauses=(0, 0, 0)) == "read"


@pytest.mark.parametrize("number", UNSTEADY)
def test_one_that_stays_is_a_failure_of_its_own_kind_that_names_the_file(number: int, tmp_path: Path) -> None:
    ahead = failing(9, number, tmp_path / "x.json")

    def read() -> str:
        raise ahead.pop()

    with pytest.raises(FileSystemFault) as stays:
        steadily(read, pauses=(0, 0, 0))
    assert len(ahead) == 5, "four tries"
    assert f"{tmp_path / 'x.json'}: {os.strerror(number)}" in str(stays.value)
    assert failure_of(stays.value) == ("file_system", 5)
    assert failure_of(OSError(number, os.strerror(number), "x.json")) == ("file_system", 5)


def test_every_other_error_is_raised_at_once(tmp_path: Path) -> None:
    ahead = failing(3, errno.ENOENT, tmp_path)

    def read() -> str:
        raise ahead.pop()

    with pytest.raises(FileNotFoundError):
        steadily(read, pauses=(0, 0, 0))
    assert len(ahead) == 2


def test_a_socket_that_does_not_answer_is_no_file_system() -> None:
    assert failure_of(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))[0] == "environment"


def test_a_walk_has_all_that_is_below_a_folder_and_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/c").touch()
    (tmp_path / "link").symlink_to("a")
    assert sorted(path.relative_to(tmp_path).as_posix() for path in walk(tmp_path)) == ["a", "a/b", "a/b/c", "link"]


@pytest.mark.parametrize(
    ("number", "passes"), [(errno.EINVAL, True), (errno.EPERM, True), (errno.ENOTSUP, True), (errno.ENOSPC, False)]
)
def test_an_extra_that_is_refused_is_no_failure(number: int, passes: bool) -> None:
    try:
        with optional():
            raise OSError(number, "refused")
    except OSError:
        assert not passes
    else:
        assert passes


@pytest.mark.parametrize(("mask", "mode"), [(0o002, 0o664), (0o022, 0o644), (0o077, 0o600)])
def test_a_shared_file_has_the_mode_of_the_umask(mask: int, mode: int, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.touch(mode=0o600)
    before = os.umask(mask)
    try:
        assert umask() == mask
        share(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_the_space_that_is_left_is_told_of_the_files_own_disk(tmp_path: Path) -> None:
    assert free_space(tmp_path / "x").endswith("MiB free there")
