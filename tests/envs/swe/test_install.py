"""Repositories are created in a folder that R2V made, and a user's own folder is never taken for an unfinished one."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from r2v.envs.swe.install import REPOSITORIES_MARKER, begin
from r2v.storage.removal import NotOurs, make_own


@pytest.mark.parametrize("lies_as", ["folder", "link"])
def test_a_repository_of_the_users_is_kept_and_an_unfinished_one_is_made_anew(tmp_path: Path, lies_as: str) -> None:
    source, archive, mine = tmp_path / "total-1.0", tmp_path / "total-1.0.tar.gz", tmp_path / "mine"
    source.mkdir()
    (source / "total.py").write_text("")
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(source, "total-1.0")
    tree = mine / "total"
    (tmp_path / "work" if lies_as == "link" else tree).mkdir(parents=True)
    if lies_as == "link":
        mine.mkdir()
        tree.symlink_to(tmp_path / "work")
    (tree / "uncommitted.txt").write_text("years of work")
    with pytest.raises(NotOurs, match="mine/total: "):
        begin(tree, archive)
    assert (tree / "uncommitted.txt").read_text() == "years of work"
    home = make_own(tmp_path / "repositories", REPOSITORIES_MARKER)
    made = begin(home / "total", archive)
    (home / "total" / "half").write_text("killed here")
    assert begin(home / "total", archive) == made and not (home / "total" / "half").exists()
