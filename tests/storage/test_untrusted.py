"""A third party's folder: its plain files are listed, and anything else in it is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from r2v.storage.artifact_manifest import Damaged
from r2v.storage.untrusted import plain_files


def test_files_and_empty_folders_of_any_name_are_listed(tmp_path: Path) -> None:
    for name in ("a.json", ".hidden", "tmp/b", "checkpoint-1/c.meta.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "void").mkdir()
    assert set(plain_files(tmp_path)) == {"a.json", ".hidden", "tmp/b", "checkpoint-1/c.meta.json", "void/"}


@pytest.mark.parametrize("target", [None, Path(__file__), Path(__file__).parent, Path("gone")])
def test_what_is_no_plain_file_is_refused_and_never_opened(target: Path | None, tmp_path: Path) -> None:
    odd = tmp_path / "setup.json"
    if target is None:
        os.mkfifo(odd)
    else:
        odd.symlink_to(target)
    with pytest.raises(Damaged, match=r"setup\.json is damaged: it is a link, a pipe or a device"):
        plain_files(tmp_path)
