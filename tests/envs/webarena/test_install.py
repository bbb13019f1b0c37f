"""An unfinished environment of R2V's at the child interpreter's path is replaced; a user's own is not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from r2v.envs.webarena.install import install_webarena
from r2v.errors import EnvironmentFault
from r2v.storage.removal import OWN, NotOurs

pytestmark = pytest.mark.skipif(sys.version_info >= (3, 13), reason="WebArena's adapter has no build for this Python")


@pytest.mark.parametrize("lies_as", ["folder", "link"])
def test_an_environment_that_r2v_did_not_mark_is_kept(
    tmp_path: Path, lies_as: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("r2v.envs.webarena.install.sys.executable", "/bin/false")
    home, venv = tmp_path / "home", tmp_path / ("mine" if lies_as == "link" else "home/venv")
    home.mkdir()
    venv.mkdir()
    for name in ("pyvenv.cfg", "years_of_work.txt"):
        (venv / name).write_text("mine")
    if lies_as == "link":
        (home / "venv").symlink_to(venv)
    with pytest.raises(NotOurs, match=r"home/venv: .*to remove it: rm "):
        install_webarena(home, say=lambda line: None)
    assert len(list(venv.iterdir())) == 2


def test_an_unfinished_one_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("r2v.envs.webarena.install.sys.executable", "/bin/false")
    for _ in range(2):
        with pytest.raises(EnvironmentFault, match="cannot make"):
            install_webarena(tmp_path, say=lambda line: None)
        assert [path.name for path in (tmp_path / "venv").iterdir()] == [OWN]
        (tmp_path / "venv" / "pyvenv.cfg").write_text("half")
