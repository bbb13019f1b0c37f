"""The environment of SWE-bench in a real sandbox: an agent's abilities, its limits, and the grading of its patch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from r2v.cli.main import main
from r2v.data.registry import DataRegistry
from r2v.data.store import StoredEpisodes
from r2v.envs.base import Info, load_benchmark, require_playable
from r2v.envs.check import check_benchmark
from r2v.envs.guard import GuardedEnv
from r2v.envs.swe.environment import even, shortened
from r2v.envs.swe.grading import official_grading
from r2v.envs.swe.patches import take_patch
from r2v.envs.swe.shells import SHELL_VARIABLES
from r2v.errors import UsageError
from r2v.sandbox.process import lacking
from tests.envs.swe.made import RIGHT, SUBMIT, bash, dataset, graded, record, walls

pytestmark = [walls, graded]
MEND = bash(f"git apply - <<'E'\n{RIGHT}E")


class Played:
    """An environment with its only task set up."""

    def __init__(self, folder: Path, *records: dict[str, Any], **options: Any) -> None:
        options = {"dataset": str(dataset(folder, *records)), "command_seconds": 20} | options
        self.benchmark = load_benchmark("swebench", options)
        self.world = self.benchmark.make()
        self.first, _ = self.world.reset(seed=1, task=self.benchmark.tasks()[0])

    def do(self, command: str) -> str:
        """Return the output of a command."""
        return self.world.step(bash(command))[0]

    def submit(self) -> Info:
        """Submit; return the info of the last step."""
        return self.world.step(SUBMIT)[4]


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Played]:
    made = Played(tmp_path)
    yield made
    made.world.close()  # type: ignore[attr-defined]


def test_the_right_change_is_resolved_and_nothing_else(tmp_path: Path, played: Played) -> None:
    assert "/testbed holds sums 1.0" in played.first and "total.py" in played.first
    assert played.world.step(MEND)[0].startswith("<returncode>0</returncode>")
    info = played.submit()
    assert info.success and info.partial_score == 1.0
    assert info.extra == {"grading": "1 of 1 failing tests pass, 0 of 1 others broke"}
    for change, resolved, reason in (
        ("true", False, "no change was submitted"),
        ("echo x > notes", False, "0 of 1 failing tests pass, 0 of 1 others broke"),
        ("echo 'def total(n): return \"3\"' > total.py", False, "0 of 1 failing tests pass, 1 of 1 others broke"),
        ("echo 'def total(n): return 3' > total.py; echo 1 > judge.py", True, "1 of 1 failing tests pass"),
    ):
        other = Played(tmp_path)
        other.do(change)
        info = other.submit()
        assert info.success is resolved and info.extra["grading"].startswith(reason), change


LITTER = (
    "head -c 4500000 /dev/urandom | base64 > run.log; echo secret > closed; chmod 000 closed; mkfifo pipe",
    "git init -q empty; echo x > empty/a; git init -q full; cd full; echo x > a; git add a; git commit -qm x",
    "git add full; git config diff.noprefix true; git config core.autocrlf input; touch .git/index.lock",
    "printf 'a\\r\\nb\\n' > 'two words'; printf x > $(printf 'caf\\351'); ln -s total.py link; chmod +x total.py",
    "git init -q src",
)
"""Files, settings and repositories that an agent may leave behind, beside a correct fix."""


def test_a_fix_in_any_encoding_is_resolved_whatever_is_left_beside_it(tmp_path: Path, played: Played) -> None:
    # The byte 0xe9 is no UTF-8: it becomes three characters where a patch goes through text.
    played.do("mkdir src; printf '# coding: latin-1\\r\\nONE = len(\"\\351\")\\r\\n' | tee {one,src/two}.py")
    played.do("echo 'from one import ONE\nfrom src.two import ONE as TWO' > total.py")
    played.do("echo 'def total(numbers): return sum(numbers) + ONE - TWO if ONE == 1 else 0' >> total.py")
    for command in LITTER:
        assert played.do(command).startswith("<returncode>0"), command
    info = played.submit()
    assert info.success, info.extra
    patch = take_patch(played.world._shell, record(tmp_path)["base_commit"])  # type: ignore[attr-defined]
    assert patch is not None and b"run.log" not in patch and b"caf\\351" in patch and b"\n+a\r\n+b\n" in patch


def test_an_agent_that_reads_the_environment_opens_the_network_or_writes_outside_finds_walls(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-of-the-user")
    monkeypatch.setenv("R2V_TEST_KEY", "sk-secret-of-the-user")
    seen = played.do("env; cat /proc/1/environ /proc/self/environ /proc/*/environ | tr '\\0' '\\n'")
    assert "sk-secret" not in seen and "PYTHONHASHSEED=0" in seen
    names = {line.partition("=")[0] for line in seen.splitlines() if "=" in line}
    allowed = {name.partition("=")[0] for name in SHELL_VARIABLES} | {"HOME", "LANG", "PWD", "OLDPWD", "SHLVL", "_"}
    assert names <= allowed | {"LD_LIBRARY_PATH"}
    curl = "python -c \"import socket; socket.create_connection(('1.1.1.1', 80), 3)\"; curl -m 3 http://1.1.1.1"
    assert "Network is unreachable" in played.do(curl) and "<returncode>0" not in played.do(curl)
    for command in ("touch /etc/x", "touch /usr/x", "echo x > /x", f"ls {Path.home()}", f"ls {Path.cwd()}"):
        assert "<returncode>0" not in played.do(command), command
    assert not Path("/etc/x").exists()


def test_what_a_command_leaves_lasts_and_the_later_history_is_not_there(played: Played) -> None:
    played.do(
        "echo one > /tmp/note; echo two > ~/note; mkdir -p a/b; ln -s ../total.py a/link; chmod +x runner.py; cd a"
    )
    assert "one\ntwo\n/testbed\n" in played.do("cat /tmp/note ~/note; pwd; test -x runner.py && cat a/link")
    log = played.do("git log --oneline --all; git fsck; ls")
    assert "base" in log and "later" not in log and "answer.txt" not in log


def test_a_hung_command_a_flood_and_a_killer_are_answered_and_leave_nothing(tmp_path: Path) -> None:
    played = Played(tmp_path, command_seconds=1)
    before = played.world.snapshot()  # type: ignore[attr-defined]
    cases = {
        "touch here; sleep 60": "it did not end within 1 s",
        "yes": "stopped:",
        "touch here; kill -9 -1": "",
        ":() { : | : & }; :": "",
        "\0": "at most",
        "x" * 100_001: "at most 100000 characters",
    }
    for command, says in cases.items():
        observation, reward, terminated, truncated, info = played.world.step(bash(command))
        assert says in observation and not terminated and not truncated and reward == 0, command
        if says:
            assert info.is_error and played.world.snapshot() == before  # type: ignore[attr-defined]
    assert played.submit().success is False


@pytest.mark.parametrize(
    "action",
    ["", "ls", "[]", '{"tool":"bash"}', '{"tool":"bash","command":7}', '{"tool":"submit","now":1}', '{"tool":"x"}'],
)
def test_a_malformed_action_is_an_error_that_changes_nothing(played: Played, action: str) -> None:
    observation, _, over, _, info = played.world.step(action)
    assert observation.startswith("error: give one call") and info.is_error and not over


def test_the_same_actions_show_the_same_text_and_a_snapshot_is_the_whole_state(tmp_path: Path) -> None:
    commands = [
        "ls -la . /tmp",
        "date; stat -c %U total.py; id -u",
        "touch new; ls -l new",
        "python -c 'print(object())'",
    ]
    first, second = Played(tmp_path), Played(tmp_path)
    assert [first.do(one) for one in commands] == [second.do(one) for one in commands]
    assert played_on(first, second) == played_on(second, first)


def played_on(one: Played, other: Played) -> list[str]:
    other.world.restore(one.world.snapshot())  # type: ignore[attr-defined]
    return [other.do("cat total.py new; git status --short"), other.do("ls /tmp")]


def test_an_observation_fits(tmp_path: Path) -> None:
    played = Played(tmp_path, observation_chars=1000)
    seen = played.do("seq 100000")
    assert len(seen) < 1200 and "characters left out" in seen and seen.endswith("99999\n100000\n</output>")
    assert shortened("x" * 1000, 1000) == "x" * 1000
    assert even("Nov 23 14:54 a\n3.25 seconds, 0xdeadbeef00") == "Sep 13  2020 a\n0.00 seconds, 0x0"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"setup_script": "echo no compiler; exit 3"}, "sums__sums-1 does not build: no compiler"),
        ({"base_commit": "0" * 40}, "git fetch failed in testbed"),
        ({"repo": "django/django"}, "django/django is no git repository here"),
    ],
)
def test_a_repository_that_does_not_build_is_a_fault_of_the_world(tmp_path: Path, change: Any, fault: str) -> None:
    options = {"dataset": str(dataset(tmp_path, record(tmp_path, **change))), "environment": "bubblewrap"}
    benchmark = load_benchmark("swebench", options)
    world = GuardedEnv(benchmark)
    info = world.reset(seed=1, task=benchmark.tasks()[0])[1]
    assert info.env_fault is not None and fault in info.env_fault


def test_the_check_of_its_grader_runs_the_tests_on_a_wrong_patch(tmp_path: Path, played: Played) -> None:
    findings = check_benchmark(played.benchmark, num_tasks=1)
    assert findings.faults == [] and findings.outcomes == {"empty": (0, 1), "wrong": (0, 1), "gold": (1, 1)}
    played.do("echo nothing > r2v-wrong.txt")
    assert played.submit().extra["grading"] == "0 of 1 failing tests pass, 0 of 1 others broke"


def test_a_deleted_repository_is_a_failure_not_a_fault(played: Played) -> None:
    played.do("rm -rf .git")
    info = played.submit()
    assert info.success is False and info.env_fault is None


def test_bad_instances_cost_their_episodes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes: dict[str, dict[str, Any]] = {
        "good": {},
        "bad-build": {"setup_script": "echo no compiler; exit 3"},
        "bad-commit": {"base_commit": "0" * 40},
        "bad-home": {"repo": "django/django"},
    }
    records = [
        record(tmp_path, instance_id=name, problem_statement=f"mend {name}", split="train", **change)
        for name, change in changes.items()
    ]
    options = f"{{dataset: {dataset(tmp_path, *records)}, environment: bubblewrap, command_seconds: 20}}"
    monkeypatch.chdir(tmp_path)
    words = ["env.benchmark=swebench", f"env.options={options}"]
    assert main(["collect", "--seeds", "1", "--overrides", *words]) == 0
    (run,) = DataRegistry().query()
    assert (run.status, run.n_episodes, run.n_success, run.n_env_faults) == ("done", 4, 1, 3)
    faults = {one.metadata.task_id: one.env_fault for one in list(StoredEpisodes(run.trajectories))}
    assert faults.pop("good") is None and all(fault and name[:3] == "bad" for name, fault in faults.items())


def test_no_sandbox_and_no_grading_are_one_line_before_anything_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["collect", "--seeds", "1", "--overrides", "env.benchmark=swebench"]
    options = f"env.options={{dataset: {dataset(tmp_path, record(tmp_path, split='train'))}}}"
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert main(words) == 2
    assert "run `r2v swebench install`" in capsys.readouterr().err
    with pytest.raises(UsageError, match=r"swebench, which grades, is not installed; run `pip install"):
        require_playable("swebench", {"dataset": "SWE-bench/SWE-bench_Verified"})  # at submission: no hub is asked
    monkeypatch.undo()
    monkeypatch.chdir(empty)
    official_grading()
    monkeypatch.setenv("PATH", str(empty))
    lacking.cache_clear()
    try:
        assert main([*words, options]) == 5
    finally:
        lacking.cache_clear()
    assert "bubblewrap is not installed" in capsys.readouterr().err and not any(empty.iterdir())
