"""Docker and apptainer: their command lines, checked by stand-in programs that run the given command here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from r2v.envs.swe.containers import ApptainerShell, DockerShell
from r2v.envs.swe.images import make_images
from r2v.envs.swe.instances import instance_of
from r2v.envs.swe.opening import Opener, image_file
from r2v.errors import EnvironmentFault, UsageError
from tests.envs.swe.made import record

PROGRAM = """\
#!/bin/bash
printf '%s\\n' "$*" >> "$(dirname "$0")/asked"
case "$*" in
  *missing*) echo "no such image" >&2; exit 125 ;;
  *build*) touch "${@: -2:1}" ;;
  *timeout*) while [ "$1" != timeout ]; do shift; done; exec "$@" ;;
esac
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("docker", "apptainer"):
        (folder / name).write_text(PROGRAM)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret-of-the-user")
    return folder / "asked"


def test_docker_has_no_network_no_key_and_is_removed(asked: Path) -> None:
    shell = DockerShell("swebench/one:latest", timeout=5)
    done = shell.execute({"command": "echo $ANTHROPIC_API_KEY; exit 3"}, "/testbed")
    assert done == {"output": "\n", "returncode": 3, "exception_info": ""}
    shell.cleanup()
    began, ran, ended = asked.read_text().splitlines()
    assert "--network none" in began and "--pull never" in began and "--security-opt no-new-privileges" in began
    assert "--workdir /testbed" in ran and "sk-secret" not in began + ran and ended.startswith("rm --force r2v-")
    with pytest.raises(EnvironmentFault, match="docker cannot start missing: no such image"):
        DockerShell("missing", timeout=5)


def test_apptainer_runs_a_file_that_was_made_before(asked: Path, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="`r2v swebench images` makes it"):
        ApptainerShell(tmp_path / "none.sif", timeout=5)
    (tmp_path / "one.sif").touch()
    shell = ApptainerShell(tmp_path / "one.sif", timeout=60)
    assert shell.execute({"command": "echo $ANTHROPIC_API_KEY"})["output"] == "\n"
    hung = shell.execute({"command": "sleep 300"}, timeout=1)
    assert hung["returncode"] == -1 and "did not end within 1 s" in hung["exception_info"]
    words = asked.read_text().splitlines()[0]
    assert all(word in words for word in ("--containall", "--cleanenv", "--network none", "--overlay"))
    (folder,) = [Path(word) for word in words.split() if "r2v-apptainer-" in word]
    assert folder.is_dir()
    shell.cleanup()
    assert not folder.exists()


def test_a_site_where_apptainer_cannot_start_is_a_fault_and_no_answer_to_a_command(asked: Path, tmp_path: Path) -> None:
    (tmp_path / "missing.sif").touch()
    with pytest.raises(EnvironmentFault, match=r"apptainer cannot start missing.sif .*: no such image"):
        ApptainerShell(tmp_path / "missing.sif", timeout=5)
    (folder,) = [Path(word) for word in asked.read_text().split() if "r2v-apptainer-" in word]
    assert not folder.exists()


def test_images_are_made_once_and_one_that_fails_stops_no_other(asked: Path, tmp_path: Path) -> None:
    names = ("swebench/one:latest", "swebench/missing:latest", "swebench/two:latest")
    made = [instance_of(record(tmp_path, repo="a/b", image=name), tmp_path, "") for name in names]
    opener = Opener(environment="auto", images=tmp_path / "images", timeout=5)
    said: list[str] = []
    for _ in range(2):
        (failed,) = make_images(opener, made, say=said.append)
        assert failed == "swebench/missing:latest: no such image"
    assert image_file(tmp_path / "images", names[2]).exists() and [line[-5:] for line in said[2:]] == ["there", "there"]
    assert sum("build" in line for line in asked.read_text().splitlines()) == 4


class Noted:
    """An environment of mini-swe-agent's protocol that records its arguments."""

    def __init__(self, **made: object) -> None:
        self.made = made

    def execute(self, action: dict[str, object], cwd: str = "", *, timeout: int | None = None) -> dict[str, object]:
        return {"output": json.dumps([action, cwd, timeout]), "returncode": 0, "exception_info": ""}


def test_an_environment_of_mini_swe_agent_s_protocol_is_named_by_a_variable_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="allowed: auto, bubblewrap, docker, apptainer, custom"):
        Opener(environment="tests.envs.swe.test_containers:Noted", images=tmp_path, timeout=7)
    opener = Opener(environment="custom", images=tmp_path, timeout=7)
    instance = instance_of(record(tmp_path, image="x:1"), tmp_path, "")
    with pytest.raises(EnvironmentFault, match="R2V_SWEBENCH_SHELL names no package"):
        opener.open(instance)
    monkeypatch.setenv("R2V_SWEBENCH_SHELL", "tests.envs.swe.test_containers:Noted")
    shell = opener.open(instance)
    assert vars(shell) == {"made": {"image": "x:1", "cwd": "/testbed", "timeout": 7}}
