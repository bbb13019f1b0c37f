from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from r2v.data import DataRegistry
from r2v.data.episode import Episode
from r2v.data.manifest import RUN_ID, read_manifest
from r2v.data.run import RunHandle
from r2v.data.store import StoredEpisodes, write_episodes
from r2v.errors import EnvironmentFault, InputError, Interrupted, LeaseConflict, UsageError
from r2v.storage.files import content_sha256
from r2v.storage.lease import Owner
from tests import warm

Play = Callable[..., Episode]
NOON = datetime(2026, 2, 18, 12, 0, 0, tzinfo=UTC)

REGISTER = """
import sys
from pathlib import Path
from r2v.data import DataRegistry
registry = DataRegistry(Path(sys.argv[1]))
for _ in range(int(sys.argv[2])):
    with registry.begin_run(benchmark="desk", provider="scripted", model_name="m", fingerprint="f",
                            config={}):
        pass
"""

COLLECT = """
import sys, time
from pathlib import Path
from r2v.data import DataRegistry
from r2v.data.store import StoredEpisodes
registry = DataRegistry(Path(sys.argv[1]))
run = registry.begin_run(benchmark="desk", provider="scripted", model_name="m", fingerprint="f", config={},
                         run_id=sys.argv[3])
for episode in StoredEpisodes(Path(sys.argv[2])):
    run.store.append(episode)
print("collected", flush=True)
time.sleep(600)
"""


class Clock:
    """A clock that moves a second at each reading."""

    def __init__(self) -> None:
        self.time = NOON

    def __call__(self) -> datetime:
        self.time += timedelta(seconds=1)
        return self.time


@pytest.fixture
def registry(tmp_path: Path) -> DataRegistry:
    return DataRegistry(tmp_path / "data", now=Clock())


def begin(registry: DataRegistry, **changes: Any) -> RunHandle:
    known = {"benchmark": "desk", "provider": "scripted", "model_name": "m", "fingerprint": "f", "config": {"k": 1}}
    return registry.begin_run(**{**known, **changes})


def collected(registry: DataRegistry, *episodes: Episode, expected: int | None = None, **changes: Any) -> str:
    with begin(registry, **changes) as run:
        for episode in episodes:
            run.store.append(episode)
        run.finish(expected=len(episodes) if expected is None else expected)
    return run.run_id


def index(registry: DataRegistry) -> Any:
    return json.loads((registry.root / "registry.json").read_text())


def test_a_run_from_begin_to_done(registry: DataRegistry, play: Play) -> None:
    episodes = [
        play(seed=1, total_cost=0.5),
        play(seed=2, success=False, total_cost=0.25),
        play(seed=3, success=False, env_fault="browser died"),
    ]
    with begin(registry, tags=("clean", "x"), notes="why") as run:
        assert RUN_ID.fullmatch(run.run_id) and run.output_dir == registry.runs / run.run_id
        assert registry.get(run.run_id).status == "running"
        for episode in episodes:
            run.store.append(episode)
        assert (live := registry.get(run.run_id)).n_episodes == 3 and live.success_rate == 0.5
        manifest = run.finish(expected=3)
    assert manifest == registry.get(run.run_id) == read_manifest(run.output_dir)
    assert manifest.status == "done"
    assert (manifest.n_episodes, manifest.n_success, manifest.n_env_faults) == (3, 1, 1)
    assert manifest.success_rate == 0.5 and manifest.total_cost_usd == 0.75 and manifest.wall_time_seconds > 0
    assert manifest.data_sha256 == content_sha256(manifest.trajectories)
    assert manifest.config == {"k": 1} and manifest.tags == ("clean", "x") and manifest.notes == "why"
    assert sorted(p.name for p in run.output_dir.iterdir()) == ["run_manifest.json", "trajectories.jsonl"]


def test_hazard9_done_only_when_the_count_matches(registry: DataRegistry, play: Play) -> None:
    assert registry.get(collected(registry, play(), expected=2)).status == "partial"
    assert registry.get(collected(registry, play(), expected=1)).status == "done"
    assert registry.get(collected(registry, play(), expected=0)).status == "partial"


@pytest.mark.parametrize(
    ("error", "status"),
    [(EnvironmentFault("disk full"), "failed"), (Interrupted("stopped"), "partial"), (None, "partial")],
)
def test_a_run_left_early_says_so(registry: DataRegistry, play: Play, error: Exception | None, status: str) -> None:
    try:
        with begin(registry) as run:
            run.store.append(play())
            if error:
                raise error
    except type(error or ValueError()):
        pass
    manifest = registry.get(run.run_id)
    assert manifest.status == status and manifest.n_episodes == 1
    assert (manifest.error is None) == (error is None)
    with begin(registry, run_id=run.run_id) as again:
        again.store.append(play(seed=2))
        assert again.finish(expected=2).status == "done" and again.manifest.error is None


def test_hazard9_killed_collector_shows_as_interrupted_and_resumes(
    registry: DataRegistry, tmp_path: Path, play: Play
) -> None:
    run_id = "desk_scripted_m_20260218T120000"
    source = tmp_path / "source.jsonl"
    write_episodes(source, [play(seed=1), play(seed=2)])
    process = subprocess.Popen(
        [sys.executable, "-c", COLLECT, str(registry.root), str(source), run_id], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "collected\n"
    assert registry.get(run_id).status == "running"
    with pytest.raises(LeaseConflict):
        begin(registry, run_id=run_id)
    with pytest.raises(InputError, match="still running"):
        registry.merge_runs([run_id], tmp_path / "m.jsonl")
    assert len(registry.merge_runs([run_id], tmp_path / "m.jsonl", False, include_running=True)) == 2
    process.kill()
    process.wait()
    assert registry.get(run_id).status == "interrupted" and registry.get(run_id).n_episodes == 2
    assert registry.query(status="interrupted") and not registry.query(status="running")
    with begin(registry, run_id=run_id) as run:
        assert run.store.done_keys() == {("t1", 1, None), ("t1", 2, None)}
        run.store.append(play(seed=3))
        assert run.finish(expected=3).status == "done"


def test_a_run_whose_node_died_shows_as_interrupted(registry: DataRegistry) -> None:
    run = begin(registry)
    lease_path = run.store.lease_path
    gone = replace(Owner.here(), host="node07", machine="0" * 12, job="4711")
    next(lease_path.iterdir()).rename(lease_path / gone.filename)
    assert registry.get(run.run_id).status == "running"
    os.utime(lease_path / gone.filename, (time.time() - 100,) * 2)
    assert registry.get(run.run_id).status == "interrupted"


def test_hazard5_resume_equals_an_uninterrupted_run(registry: DataRegistry, play: Play) -> None:
    grid = [play(f"t{t}", seed) for t in range(5) for seed in range(4)]
    whole = registry.get(collected(registry, *grid))
    with begin(registry) as run:
        for episode in grid[:7]:
            run.store.append(episode)
    with begin(registry, run_id=run.run_id) as run:
        done = run.store.done_keys()
        for episode in grid:
            if (episode.metadata.task_id, episode.metadata.seed, None) not in done:
                run.store.append(episode)
        resumed = run.finish(expected=20)
    assert resumed.status == "done" and resumed.data_sha256 == whole.data_sha256
    assert list(StoredEpisodes(resumed.trajectories)) == grid


def test_hazard5_another_fingerprint_is_refused_unless_forced(registry: DataRegistry, play: Play) -> None:
    run_id = collected(registry, play())
    before = (registry.runs / run_id / "run_manifest.json").read_bytes()
    with pytest.raises(UsageError, match="made with fingerprint f, this configuration has g") as refusal:
        begin(registry, run_id=run_id, fingerprint="g", config={"k": 2})
    assert refusal.value.exit_code == 2
    assert (registry.runs / run_id / "run_manifest.json").read_bytes() == before
    with begin(registry, run_id=run_id, fingerprint="g", config={"k": 2}, force=True) as run:
        manifest = run.finish(expected=1)
    assert manifest.fingerprint == "g" and manifest.config == {"k": 2}
    assert manifest.superseded == ({"fingerprint": "f", "config": {"k": 1}},)


def test_hazard6_two_starts_in_one_second(tmp_path: Path) -> None:
    registry = DataRegistry(tmp_path / "data", now=lambda: NOON)
    bases = (None, None, tmp_path / "elsewhere")
    names = [begin(registry, base=base).run_id for base in bases]
    assert names == ["desk_scripted_m_20260218T120000" + suffix for suffix in ("", "-2", "-3")]
    assert all(map(RUN_ID.fullmatch, names))


@pytest.mark.parametrize("run_id", ["desk_scripted_other_20260218T120000", "exp1", "desk_scripted_m_2026", "../x"])
def test_a_name_of_another_form_is_refused(registry: DataRegistry, run_id: str) -> None:
    with pytest.raises(UsageError, match="desk_scripted_m_YYYYMMDDTHHMMSS"):
        begin(registry, run_id=run_id)
    assert not list(registry.runs.glob("*"))


@pytest.mark.parametrize(("processes", "rounds"), [(20, 1), (4, 50)], ids=["many processes", "many rounds"])
def test_no_concurrent_registration_is_lost(quick_disk: Path, processes: int, rounds: int) -> None:
    environment = {**os.environ, "PYTHONPATH": str(warm.ROOT)}
    command = [warm.python(), "-c", REGISTER, str(quick_disk), str(rounds)]
    started = [subprocess.Popen(command, env=environment) for _ in range(processes)]
    assert [process.wait() for process in started] == [0] * processes
    registry = DataRegistry(quick_disk)
    assert len({run["run_id"] for run in index(registry)["runs"]}) == processes * rounds
    before = registry.index_path.read_bytes()
    registry.rebuild()
    assert registry.index_path.read_bytes() == before


def test_hazard2_lost_index_is_rebuilt_to_the_byte_wherever_the_runs_lie(
    registry: DataRegistry, tmp_path: Path, play: Play
) -> None:
    bases = [None, registry.root / "experiments" / "exp_01", tmp_path / "far"]
    names = [collected(registry, play(), base=base) for base in bases]
    path = registry.root / "registry.json"
    before = path.read_bytes()
    path.unlink()
    assert [run.run_id for run in registry.query(status="done")] == names
    DataRegistry(registry.root.resolve()).rebuild()
    assert path.read_bytes() == before
    assert [run.output_dir for run in registry.query()] == [
        (base or registry.runs) / name for base, name in zip(bases, names, strict=True)
    ]
    assert index(registry)["schema_version"] == "1"
    assert index(registry)["updated_at"] == max(run.updated_at for run in registry.query())


BROKEN = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "empty": lambda path: path.write_text("{}"),
    "list": lambda path: path.write_text("[]"),
    "null": lambda path: path.write_text("null"),
    "deep": lambda path: path.write_text("[" * 100_000),
    "binary": lambda path: path.write_bytes(b"\xff\xfe\x00"),
    "folder": lambda path: (path.unlink(), path.mkdir()),
    "another run's": lambda path: path.write_text(path.read_text().replace(path.parent.name, "desk_scripted_m_x")),
    "type": lambda path: altered(path, n_episodes=-1),
    "range": lambda path: altered(path, n_success=7),
    "status": lambda path: altered(path, status="interrupted?"),
    "cost": lambda path: path.write_text(path.read_text().replace('"total_cost_usd": 0.0', '"total_cost_usd": NaN')),
    "schema": lambda path: altered(path, schema_version="99"),
}


def altered(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_manifest_is_passed_over_and_stops_no_other_run(
    kind: str, registry: DataRegistry, play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    broken, whole = collected(registry, play()), collected(registry, play())
    path = registry.runs / broken / "run_manifest.json"
    BROKEN[kind](path)
    assert [run.run_id for run in registry.query()] == [whole] == [registry.latest_run("desk").run_id]
    assert whole in registry.summary() and broken not in registry.summary()
    registry.rebuild()
    assert [run["run_id"] for run in index(registry)["runs"]] == [whole]
    assert registry.get(collected(registry, play(seed=2))).status == "done"
    [line] = caplog.messages
    assert line.startswith("run skipped: error=") and str(path) in line and "\n" not in line
    with pytest.raises(InputError, match="restore it|use the R2V that wrote it"):
        registry.get(broken)
    with pytest.raises(InputError, match="restore it|use the R2V that wrote it"):
        begin(registry, run_id=broken)
    assert path.exists(), "the run stays as it is, to be mended by hand"


@pytest.mark.parametrize(
    "text",
    ["[]", "null", "7", '{"runs": null}', '{"schema_version": "99"}', '{"schema_version": "1", "runs": [{}]}']
    + ['{"schema_version": "1", "runs": [{"run_id": 3}]}', "{", "", "\0" * 9, "[" * 50_000, "folder"],
)
def test_an_index_of_any_shape_is_set_aside_and_made_again(
    text: str, registry: DataRegistry, play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    first = collected(registry, play())
    before = registry.index_path.read_bytes()
    registry.index_path.unlink()
    if text == "folder":
        registry.index_path.mkdir()
    else:
        registry.index_path.write_text(text)
    second = collected(registry, play())
    assert [run["run_id"] for run in index(registry)["runs"]] == [first, second]
    [aside] = registry.root.glob("registry.json.*.quarantine")
    assert aside.is_dir() or aside.read_text() == text
    [line] = caplog.messages
    assert line.startswith("index damaged") and aside.name in line and "\n" not in line
    assert before.splitlines()[1].rstrip(b",") in registry.index_path.read_bytes()


def test_episodes_that_are_broken_in_an_unfinished_run_stop_no_other_run(
    registry: DataRegistry, play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    whole = collected(registry, play())
    run = begin(registry)
    run.store.path.write_text("{}\n{}\n")
    assert [found.run_id for found in registry.query()] == [whole, run.run_id]
    assert f"{run.store.path}:1" in caplog.text


def test_many_runs_are_listed_without_writing_the_index_for_each(
    quick_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written bytes grow with the runs; a journal holds the entries that are not in the index yet, and is merged at the
    end."""
    from r2v.data import registry as module

    monkeypatch.setattr(module, "_SMALL", 2_000)
    written: list[int] = []
    write = module.write_text
    monkeypatch.setattr(module, "write_text", lambda path, text: (written.append(len(text)), write(path, text))[1])
    registry = DataRegistry(quick_disk, now=Clock())
    sizes = {}
    for number in range(160):
        with begin(registry):
            pass
        sizes[number + 1] = sum(written)
    assert sizes[160] - sizes[80] < 3 * (sizes[80] - sizes[40]), "quadratic would be four times"
    journal, number = quick_disk / "registry.journal.jsonl", 160
    while not journal.exists():
        with begin(registry):
            number += 1
    assert len(index(registry)["runs"]) <= number
    registry._runs_index.flush()
    flushed = registry.index_path.read_bytes()
    assert len(index(registry)["runs"]) == number and not journal.exists()
    registry.rebuild()
    assert registry.index_path.read_bytes() == flushed


def test_a_torn_journal_loses_only_the_line_it_tore(quick_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from r2v.data import registry as module

    monkeypatch.setattr(module, "_SMALL", 0)
    registry = DataRegistry(quick_disk, now=Clock())
    for _ in range(30):
        with begin(registry):
            pass
    journal = quick_disk / "registry.journal.jsonl"
    journal.write_bytes(b'{"run_id": "desk_scr')
    for _ in range(2):
        with begin(registry):
            pass
    registry._runs_index.flush()
    assert len(index(registry)["runs"]) >= 30
    registry.rebuild()
    assert len(index(registry)["runs"]) == 32


def test_a_run_outside_is_resumed_from_its_base_even_when_its_link_is_lost(
    registry: DataRegistry, tmp_path: Path, play: Play
) -> None:
    run_id = collected(registry, play(), base=tmp_path / "far")
    (registry.runs / run_id).unlink()
    assert registry.query() == []
    with begin(registry, run_id=run_id, base=tmp_path / "far") as run:
        assert run.finish(expected=1).status == "done"
    assert registry.get(run_id).output_dir == tmp_path / "far" / run_id


def test_the_data_folder_may_be_moved(registry: DataRegistry, play: Play) -> None:
    run_id = collected(registry, play(), base=registry.root / "experiments")
    moved = DataRegistry(registry.root.rename(registry.root.with_name("moved")))
    assert moved.get(run_id).trajectories.exists()
    before = (moved.root / "registry.json").read_bytes()
    moved.rebuild()
    assert (moved.root / "registry.json").read_bytes() == before


def test_query_and_latest(registry: DataRegistry, play: Play) -> None:
    a = collected(registry, play(), tags=("x", "y"))
    b = collected(registry, play(), model_name="gpt-4o", provider="openai", tags=("x",))
    c = collected(registry, play(), expected=9)

    def found(**given: Any) -> list[str]:
        return [run.run_id for run in registry.query(**given)]

    assert found() == [a, b, c] and found(benchmark="chain") == []
    assert found(model="gpt-4o") == found(provider="openai") == [b]
    assert found(status="done", benchmark="desk") == [a, b] and found(status="partial") == [c]
    assert found(tags=["x"]) == [a, b] and found(tags=["y", "x"]) == [a]
    assert registry.latest_run("desk").run_id == b and registry.latest_run("desk", "m").run_id == a
    with pytest.raises(InputError, match="no done run of desk by claude"):
        registry.latest_run("desk", "claude")
    with pytest.raises(InputError, match="no run .*did you mean"):
        registry.get(a + "0")


def test_summary_lists_every_run(registry: DataRegistry, play: Play) -> None:
    done = collected(registry, play(seed=1), play(seed=2, success=False), tags=("x",))
    with begin(registry) as run:
        head, first, second = registry.summary().splitlines()
    assert head.split() == ["run", "status", "episodes", "success", "list", "price", "$", "tags"]
    assert first.split() == [done, "done", "2", "50.0%", "0.00", "x"]
    assert second.split() == [run.run_id, "running", "0", "-", "0.00"]


def test_merge_of_a_run_with_itself(registry: DataRegistry, tmp_path: Path, play: Play) -> None:
    a = collected(registry, play(run_id="a"), play("t2", run_id="a"))
    b = collected(registry, play(run_id="b"), play("t3", run_id="b"))
    once, twice = tmp_path / "once.jsonl", tmp_path / "twice.jsonl"
    registry.merge_runs([a], once)
    registry.merge_runs([a, a], twice)
    assert once.read_bytes() == twice.read_bytes()
    merged = registry.merge_runs([a, b], output_path=tmp_path / "both.jsonl")
    episodes = list(merged.iter_episodes())
    assert [(e.metadata.run_id, e.metadata.task_id) for e in episodes] == [("a", "t1"), ("a", "t2"), ("b", "t3")]
    assert list(registry.iter_episodes([a, b], deduplicate=True)) == episodes
    assert len(list(registry.iter_episodes([a, b, a], deduplicate=False))) == 4
    with pytest.raises(InputError, match="no run nowhere"):
        registry.merge_runs(["nowhere"], once)


def test_importing_the_registry_loads_nothing_heavy() -> None:
    program = (
        "import sys, r2v.data; heavy = {'torch', 'transformers', 'trl', 'peft', 'numpy', 'sklearn'}; "
        "sys.exit(bool(heavy & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
