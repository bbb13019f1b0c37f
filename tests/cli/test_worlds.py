"""`r2v webarena` and `check-env`: their output and exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from r2v.cli.main import main
from r2v.envs.webarena.addresses import PUBLIC_NAMES
from tests.envs.webarena import listed
from tests.envs.webarena.stubs import Stub


@listed
def test_install_leaves_what_is_there_and_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["webarena", "install"]) == 0
    assert capsys.readouterr().out.startswith("browsergym-webarena 0.14.3, libwebarena 0.0.4, webarena-verified 1.2.3")


def test_check_tells_site_by_site(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stub = Stub()
    for name, value in stub.variables("x").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WA_X_MAP", "http://127.0.0.1:9")
    monkeypatch.setenv("WA_X_HOMEPAGE", "")
    assert main(["webarena", "check", "--site", "x"]) == 5
    stub.close()
    told = capsys.readouterr().out
    assert f"ok    wikipedia: {stub.url('wikipedia')} answers 200" in told
    assert "fault map: http://127.0.0.1:9 does not answer (" in told
    assert "WA_X_HOMEPAGE is not set" in told


def test_check_without_any_address_is_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for site in PUBLIC_NAMES:
        monkeypatch.delenv(f"WA_{site.upper()}", raising=False)
    assert main(["webarena", "check"]) == 2
    assert "WA_SHOPPING" in capsys.readouterr().err


def test_nothing_recorded_is_nothing_to_grade(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["webarena", "regrade", "--traces", str(tmp_path)]) == 3
    assert "no recorded traffic" in capsys.readouterr().err


def test_a_benchmark_whose_extra_is_missing_names_it(tmp_path: Path) -> None:
    missing = 'raise ModuleNotFoundError("No module named minigrid", name="minigrid")'
    (tmp_path / "minigrid").with_suffix(".py").write_text(missing)
    done = subprocess.run(
        [sys.executable, "-m", "r2v", "check-env", "babyai"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 5 and "pip install 'r2v[babyai]'" in done.stderr.splitlines()[-1], done.stderr
