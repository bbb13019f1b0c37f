"""Helpers play a stage's blocks beside it, and whatever happens to them the result is the same bytes."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from r2v.cli.main import main
from r2v.config import Config, TeacherConfig, load
from r2v.errors import UsageError
from r2v.pipeline.graph import as_configured
from r2v.pipeline.helping import help_job, helpers, require_helpable
from r2v.pipeline.inputs import fingerprint_of, published
from r2v.pipeline.jobs import COMMANDS, JOBS, job
from r2v.pipeline.rows import JOIN
from r2v.randomness import generator
from r2v.storage.artifact import ATTEMPT
from r2v.storage.integrity import Artifact
from r2v.storage.removal import ATTEMPT_MARKER, ATTEMPT_PART, remove_own
from tests import trust, warm
from tests.trust import MICRO
from tests.trust.alter import hard_copy

SMALL = ("rollout.episodes_per_block=1",)
"""A block a task: the evaluation of tests/micro.yaml has four in each condition, and as many rounds of calibration."""
_COMMIT = re.compile(rb'"git_commit": "[0-9a-f]{40}"')
WORDS = ("evaluate", "--config", str(MICRO), "--overrides", *SMALL)


def attempt_of(project: Path, name: str) -> Path:
    """Return the published attempt of a job."""
    places = {
        "evaluate": "results/micro",
        "perturb": "data/micro/trajectories",
        "router": "outputs/micro/router",
        "ablations": "results/ablations/micro",
    }
    return (project / places.get(name, f"data/micro/{name}")).resolve()


def content(folder: Path) -> dict[str, bytes]:
    """Return an artifact's files without provenance and times."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and "checkpoint" not in path.name]
    about = ("artifact.json", "config.yaml", ATTEMPT)
    return {
        path.relative_to(folder).as_posix(): _COMMIT.sub(b"", path.read_bytes())
        for path in files
        if path.name not in about
    }


def begun(project: Path, name: str) -> dict[str, bytes]:
    """Reset the attempt of a job to a run that was killed before its first episode; return its former content."""
    folder = attempt_of(project, name)
    made = content(folder)
    for path in folder.iterdir():
        if path.name not in (ATTEMPT, "config.yaml"):
            remove_own(path, ATTEMPT_PART)
    shutil.rmtree(project / "outputs/.episodes")
    return made


@pytest.fixture
def project(micro_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = hard_copy(micro_run, tmp_path / "project")
    monkeypatch.chdir(copy)
    return copy


def inputs_of(config: Config, name: str) -> dict[str, Artifact]:
    return {needed: published(config, needed) for needed in as_configured(config, job(name)).inputs}


def test_the_commands_that_can_be_helped_are_those_whose_stage_has_a_play() -> None:
    playable = {row.command.name for row in JOBS if row.load().play is not None}
    assert {row.name for row in COMMANDS if row.helped} == playable


@pytest.mark.parametrize("name", ["perturb", "candidates", "router_features", "router", "evaluate"])
def test_what_a_helper_has_played_is_the_stage_s_own(
    name: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected, config = begun(project, name), load(str(MICRO), SMALL)
    help_job(config, job(name), inputs_of(config, name))
    assert content(attempt_of(project, name)) == {}, "a helper writes nothing into the attempt"
    files = list((project / "outputs/.episodes" / attempt_of(project, name).name).glob("*.jsonl"))
    assert len(files) > 2 and main([*job(name).argv, *WORDS[1:]]) == 0
    assert content(attempt_of(project, name)) == expected
    assert "attempt resumed: cached_plays=" in capsys.readouterr().err
    help_job(config, job(name), inputs_of(config, name))
    (said,) = capsys.readouterr().err.splitlines()
    assert said == f"helper ended, no block is left: stage={name}"


def without_parts(project: Path) -> dict[str, dict[str, bytes]]:
    """Reset the ablations to a run that was killed, and remove the evaluations and routers that they had made; return
    the former content of these artifacts, by folder."""
    store, own = project.resolve() / "outputs/.artifacts", attempt_of(project, "ablations")
    named = json.loads((own / "artifact.json").read_text())["summary"]["artifacts"]
    chain = {(project / place).resolve() for place in ("results/micro", "outputs/micro/router")}
    parts = [store / name for name in named if name.startswith(("evaluate-", "router-")) and store / name not in chain]
    assert len(parts) > 2
    held = {str(path): content(path) for path in parts}
    for path in parts:
        remove_own(path, ATTEMPT_MARKER)
    return held | {str(own): begun(project, "ablations")}


def now(expected: dict[str, dict[str, bytes]]) -> dict[str, dict[str, bytes]]:
    """Return the content of these folders."""
    return {folder: content(Path(folder)) for folder in expected}


def test_a_helper_of_ablations_makes_their_parts(project: Path) -> None:
    expected, config = without_parts(project), load(str(MICRO), SMALL)
    help_job(config, job("ablations"), inputs_of(config, "ablations"))
    own = str(attempt_of(project, "ablations"))
    assert now(expected) == expected | {own: {}}, "the tables are the stage's own"
    assert main(["ablations", *WORDS[1:]]) == 0
    assert now(expected) == expected


def test_ablations_and_their_helper_share_the_rows(project: Path) -> None:
    expected = without_parts(project)
    helper = warm.start(project, "ablations", *WORDS[1:], *JOIN)
    done = warm.run(project, "ablations", *WORDS[1:])
    assert done.returncode == 0, done.stderr
    assert helper.communicate() and helper.returncode == 0
    assert now(expected) == expected


def test_a_helper_of_what_has_not_begun_ends_with_a_line(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = load(str(MICRO), ["evaluation.seeds=[7]"])
    slept: list[float] = []
    with caplog.at_level("INFO"):
        help_job(config, job("evaluate"), inputs_of(config, "evaluate"), patience=3.0, sleep=slept.append)
    assert sum(slept) == 3.0 and "stage has not begun" in caplog.messages[-1]
    key = fingerprint_of(config, job("evaluate"), inputs_of(config, "evaluate"))
    assert not (project / "outputs/.artifacts" / f"evaluate-{key}").exists()


def test_a_collection_by_batches_is_played_by_one_process() -> None:
    batches = TeacherConfig(provider="openai", model_name="gpt-5.2")
    paid = replace(Config(), teacher=batches)
    with pytest.raises(UsageError, match=r"collect: rollout.helpers=.* teacher.mode=auto .*or set"):
        require_helpable(paid, job("collect"))
    with pytest.raises(UsageError, match="teacher.mode=auto"), helpers(paid, job("collect"), 2):
        pass
    require_helpable(paid, job("evaluate"))
    require_helpable(replace(paid, teacher=replace(batches, mode="concurrent")), job("collect"))
    require_helpable(Config(), job("collect"))


@pytest.fixture
def quick_python(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make helpers start by a Python whose libraries are imported already."""
    monkeypatch.setattr("sys.executable", warm.python())
    monkeypatch.setenv("PYTHONPATH", str(warm.ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield


def test_a_stage_with_helpers_on_its_machine_makes_the_same_bytes(project: Path, quick_python: None) -> None:
    expected = begun(project, "evaluate")
    assert main([*WORDS, "--overrides", "rollout.helpers=2"]) == 0
    assert content(attempt_of(project, "evaluate")) == expected
    assert not list((project / "outputs/.episodes").rglob("*.lease"))


KILLS = 20 if trust.whole_suites else 2
LARGE = (
    ("evaluation.num_tasks=40", "evaluation.seeds=[1,2]", "rollout.episodes_per_block=8")
    if trust.whole_suites
    else SMALL
)


@pytest.mark.parametrize("count", [1, 2, 4] if trust.whole_suites else [1])
def test_processes_killed_at_random_lose_nothing_that_was_played(count: int, project: Path) -> None:
    """The stage and its helpers, each killed -9 in turn and restarted; episodes finished in one life are kept for the
    next."""
    words = ("evaluate", "--config", str(MICRO), "--overrides", *LARGE)
    if LARGE != SMALL:  # the project has made it with SMALL
        alone = warm.run(project, *words)
        assert alone.returncode == 0, alone.stderr
    expected, kept, killed = begun(project, "evaluate"), 0, list[int]()
    running = [warm.start(project, *words, *(JOIN if number else [])) for number in range(1 + count)]
    while len(killed) < KILLS and kept < SETTLED:
        time.sleep(generator("helping", count, len(killed)).uniform(0.5, 3.0))
        victim = generator("helping", "victim", count, len(killed)).choice(range(1 + count))
        running[victim].kill()
        running[victim].communicate()
        killed.append(victim)
        plays = _plays(project)
        assert plays >= kept, "what was played is there, by whoever"
        kept = plays
        running[victim] = warm.start(project, *words, *(JOIN if victim else []))
    for process in running:
        process.communicate()
    done = warm.run(project, *words)
    assert done.returncode == 0, done.stderr
    assert content(attempt_of(project, "evaluate")) == expected
    print(f"{count} helpers: {len(killed)} kills, {killed.count(0)} of the stage itself; {len(expected)} files equal")


SETTLED = 10**9
"""More than any number of lines: the artifact is finished and contains its episodes."""


def _plays(project: Path) -> int:
    """Return the number of episode lines, published ones included."""
    folder = project / "outputs/.episodes" / attempt_of(project, "evaluate").name
    lines = sum(path.read_bytes().count(b"\n") for path in folder.glob("*.jsonl"))
    return SETTLED if (folder / "published.json").exists() else lines
