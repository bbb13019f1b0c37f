"""Collecting: the run that an attempt resumes, helpers that change no result, and providers, paid once.

The episodes are the same by whichever way a provider's requests travel.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from r2v.config import Config, TeacherConfig, load
from r2v.data.manifest import RunManifest
from r2v.data.registry import DataRegistry
from r2v.data.store import StoredEpisodes, TrajectoryStore
from r2v.emulator import Emulator, Fault, Lifecycle
from r2v.envs.base import load_benchmark, tools_of
from r2v.errors import EnvironmentFault, InputError, Interrupted, UsageError
from r2v.evaluation.measures.statistics import wilson
from r2v.llm.types import ScoreRequest
from r2v.llm.waves import Waves
from r2v.pipeline.helping import help_job
from r2v.pipeline.jobs import job
from r2v.pipeline.run import run_job
from r2v.policy.training_tools import tool_specs
from r2v.rollout.model_factory import Payer, judge_of
from r2v.rollout.session import Session
from r2v.stages.collect import _under_way
from r2v.stages.collect_estimate import estimate
from r2v.storage.artifact import Artifact, Work
from r2v.storage.files import content_sha256
from r2v.wire.message import Message
from tests import warm
from tests.llm.talk import HeldLifecycle, environment

SMALL = (
    "env.options.num_tasks=36",
    "env.options.num_heldout=0",
    "data.seeds=[1,2]",
    "data.num_episodes=4",
    "rollout.workers=1",
    "teacher.flush_seconds=0.2",
    "teacher.poll_seconds=0.02",
    "teacher.preflight=false",
    "teacher.reconcile_after=0.2",
)
MODELS = {"openai": "gpt-5.2", "anthropic": "claude-haiku-4-5"}
KEYS = ("sk-test-0123456789", "sk-ant-test-0123456789")

RUN_ID = "desk_scripted_expert-v1_20260102T030405"
HELPED = (*SMALL[:3], "data.num_episodes=6", "rollout.workers=1", "rollout.episodes_per_block=2")
OF_TIME = ("started_at", "updated_at", "finished_at", "wall_time_seconds", "output_dir", "superseded")

Serve = Callable[..., AbstractContextManager[Emulator]]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Return a function that starts an emulator and points both SDKs to it."""

    @contextmanager
    def serve(*faults: Fault, **settings: Any) -> Iterator[Emulator]:
        usual: dict[str, Any] = {"lifecycle": Lifecycle(polls=1)}
        with Emulator(answer="desk", faults=faults, **(usual | settings)) as emulator:
            for name, value in environment(emulator).items():
                monkeypatch.setenv(name, value)
            yield emulator

    return serve


def collect(root: Path, provider: str, *overrides: str) -> Artifact:
    config = load(None, [*SMALL, f"teacher.provider={provider}", f"teacher.model_name={MODELS[provider]}", *overrides])
    return run_job(config, job("collect"), {}, root=root, force=True).artifact


def newest(root: Path) -> RunManifest:
    return DataRegistry(root / "data").query()[-1]


@pytest.mark.parametrize("provider", MODELS)
def test_the_same_episodes_in_every_mode(provider: str, served: Serve, tmp_path: Path) -> None:
    found = {}
    for mode in ("batch", "concurrent", "auto"):
        root = tmp_path / mode
        with served() as emulator:
            collect(root, provider, f"teacher.mode={mode}", "teacher.waiting_usd_per_hour=0", "teacher.tail=0.5")
            paid = emulator.ledger()
        run = newest(root)
        assert tool_specs(run.tools or ()) == tools_of(load_benchmark("desk")), "a training node needs no world"
        found[mode] = (
            content_sha256(run.trajectories),
            sum(len(e.steps) for e in list(StoredEpisodes(run.trajectories))),
        )
        assert (run.status, run.n_episodes) == ("done", 8)
        assert max(paid.paid().values()) == 1 and sum(paid.paid().values()) == found[mode][1]
        ways = {bill.mode for bill in paid.bills}
        assert ways == {"batch": {"batch"}, "concurrent": {"sync"}, "auto": {"batch", "sync"}}[mode]
        written = b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file())
        assert not any(key.encode() in written for key in KEYS)
    assert len(set(found.values())) == 1


def test_an_endpoint_of_ones_own_collects_under_the_key_and_prices_that_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("LAB_API_KEY", "sk-lab-0123456789")
    with Emulator(answer="desk") as emulator:
        own = ["teacher.model_name=lab/model-7b", f"teacher.base_url={emulator.openai_url}", "teacher.usd_in=1.5"]
        with pytest.raises(UsageError, match=r"no price in genai-prices .*teacher\.usd_in and teacher\.usd_out"):
            collect(tmp_path, "openai", *own, "teacher.api_key_env=LAB_API_KEY")
        with pytest.raises(UsageError, match="OPENAI_API_KEY is not set .*if the endpoint asks for no key"):
            collect(tmp_path, "openai", *own, "teacher.usd_out=3")
        made = collect(tmp_path, "openai", *own, "teacher.usd_out=3", "teacher.api_key_env=LAB_API_KEY")
        bills = emulator.ledger().bills
    run = newest(tmp_path)
    assert (run.status, run.n_episodes) == ("done", 8)
    assert {(bill.model, bill.mode) for bill in bills} == {("lab/model-7b", "sync")}
    usd = sum(1.5 * bill.tokens_in + 3 * bill.tokens_out for bill in bills) / 1e6
    assert run.total_cost_usd == pytest.approx(usd, rel=1e-6)
    assert f"base_url: {emulator.openai_url}" in (made.folder / "config.yaml").read_text()
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"sk-lab" not in written


def test_refused_turns_are_failures_of_the_model_and_never_dialogue(served: Serve, tmp_path: Path) -> None:
    """Regression: two rejected lines cost all ten answers; here the others are kept and paid once."""
    with served(Fault("line_400", at=(2, 5))) as emulator:
        collect(tmp_path, "openai", "teacher.mode=batch")
        assert max(emulator.ledger().paid().values()) == 1
    run = newest(tmp_path)
    episodes = list(StoredEpisodes(run.trajectories))
    refused = [episode for episode in episodes if episode.outcome == "refused"]
    assert (run.status, run.n_episodes, run.n_env_faults, run.outcomes) == ("done", 8, 0, {"refused": 2})
    assert all((e.outcome_reason or "").startswith("400") and not e.steps and not e.success for e in refused)
    assert len(refused) == 2 and run.success_rate <= 0.75
    assert not any("error" in step.action.raw_text for episode in episodes for step in episode.steps)


@pytest.mark.parametrize("mode", ["batch", "concurrent"])
def test_without_a_network_the_cause_is_said_and_nothing_is_booked(
    mode: str, served: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served():
        pass  # its port is free again: nothing listens there
    settings = [f"teacher.mode={mode}", "teacher.max_usd=1", "teacher.outage_seconds=0.2"]
    with pytest.raises(EnvironmentFault, match="openai: no connection to 127.0.0.1.*; check the network"):
        collect(tmp_path, "openai", *settings)
    with served() as emulator:
        collect(tmp_path, "openai", *settings)
        assert max(emulator.ledger().paid().values()) == 1
    assert newest(tmp_path).status == "done" and len(DataRegistry(tmp_path / "data").query()) == 1


def test_no_credit_midway_keeps_everything_and_goes_on_after(served: Serve, tmp_path: Path) -> None:
    dry = Fault("credit_exhausted", on="sync", at=tuple(range(2, 9)))
    with served(Fault("line_credit", at=tuple(range(7, 60))), dry) as emulator:
        with pytest.raises(EnvironmentFault, match="check the account"):
            collect(tmp_path, "openai", "teacher.mode=batch")
        assert newest(tmp_path).status == "failed"
    with served() as emulator:
        collect(tmp_path, "openai", "teacher.mode=batch")
        assert max(emulator.ledger().paid().values()) == 1
    assert [run.status for run in DataRegistry(tmp_path / "data").query()] == ["done"]


def test_a_cap_of_half_the_run_stops_it_and_a_higher_one_goes_on(served: Serve, tmp_path: Path) -> None:
    common = ["teacher.mode=batch", "teacher.max_tokens=64"]
    with served():
        collect(tmp_path / "free", "openai", *common)
    free = newest(tmp_path / "free")
    whole = json.loads((free.output_dir / "provider" / "progress.json").read_text())["usd"]
    root, cap = tmp_path / "capped", whole / 2
    with served() as emulator:
        with pytest.raises(EnvironmentFault, match=r"\$0\.\d+ are spent and the next request may cost"):
            collect(root, "openai", *common, f"teacher.max_usd={cap}")
        spent = json.loads((newest(root).output_dir / "provider" / "progress.json").read_text())["usd"]
        first = len(emulator.ledger().bills)
        assert 0.25 * cap < spent <= cap
        collect(root, "openai", *common)
        assert 0 < first < len(emulator.ledger().bills)
        assert max(emulator.ledger().paid().values()) == 1
    assert content_sha256(newest(root).trajectories) == content_sha256(free.trajectories)


def test_a_journal_of_another_model_is_refused(served: Serve, tmp_path: Path) -> None:
    with served():
        collect(tmp_path, "openai", "teacher.mode=concurrent")
        run = newest(tmp_path)
        journal = run.output_dir / "provider" / "journal.jsonl"
        journal.write_text(journal.read_text().replace("gpt-5.2", "gpt-5.1"))
        lines = run.trajectories.read_text().splitlines()
        run.trajectories.write_text("\n".join(lines[:-1]) + "\n")
        with pytest.raises(InputError, match="belongs to another configuration .model=gpt-5.1 there, gpt-5.2 here"):
            collect(tmp_path, "openai", "teacher.mode=concurrent", f"run.id={run.run_id}")


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ((), "OPENAI_API_KEY is not set"),
        (("teacher.model_name=gpt-99",), "no price in genai-prices"),
        (("teacher.model_name=claude-haiku-4-5",), "is a model of anthropic, but teacher.provider is openai"),
    ],
)
def test_a_teacher_that_cannot_be_asked_is_named_before_anything_is_written(
    overrides: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(UsageError, match=told):
        collect(tmp_path, "openai", *overrides)
    assert not (tmp_path / "data").exists() or not json.loads((tmp_path / "data/registry.json").read_text())["runs"]


def test_SIGTERM_leaves_the_batch_under_way_and_the_same_command_goes_on(served: Serve, tmp_path: Path) -> None:
    teacher = ("teacher.provider=openai", "teacher.model_name=gpt-5.2", "teacher.mode=batch", "teacher.max_usd=9")
    held = HeldLifecycle()
    with served(lifecycle=held) as emulator:
        process = warm.start(tmp_path, "collect", "--overrides", *SMALL, *teacher)
        while not emulator.ledger().bills and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        told = process.communicate(timeout=60)[1]
        assert process.returncode == 75, told
        assert newest(tmp_path).status == "partial"
        assert len(emulator.ledger().bills) == 8
        held.release()
        collect(tmp_path, "openai", "teacher.mode=batch")
        assert max(emulator.ledger().paid().values()) == 1
    assert newest(tmp_path).status == "done"


def test_a_dry_run_counts_what_the_run_then_asks(
    served: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = load(None, [*SMALL, "teacher.provider=openai", "teacher.model_name=gpt-5.2"])
    told = estimate(config, tmp_path)
    assert not list(tmp_path.iterdir()), "nothing is written"
    with served() as emulator:
        with caplog.at_level("INFO", logger="r2v"):
            collect(tmp_path, "openai", "teacher.mode=concurrent")
        asked = len(emulator.ledger().bills)
    assert sum("collection plan: episodes=8 batches=$" in line for line in caplog.messages) == 1, "before it starts"
    assert told.missing == told.episodes == 8 and asked <= told.most_requests
    assert abs(told.requests - asked) <= 0.25 * asked
    plans = told.plans
    assert 0 < plans.usd_batch == pytest.approx(plans.usd_direct / 2)
    longest = max(len(episode.steps) for episode in list(StoredEpisodes(newest(tmp_path).trajectories)))
    assert plans.hours_batch == pytest.approx(longest / 3, rel=0.35), "one batch of 20 minutes for each turn"
    assert plans.hours_direct == pytest.approx(longest * 5 / 3600, rel=0.35), "8 at a time: the longest decides"
    assert plans.line in told.lines and "chosen=direct" in plans.line
    again = estimate(
        load(
            None,
            [*SMALL, "teacher.provider=openai", "teacher.model_name=gpt-5.2", f"run.id={newest(tmp_path).run_id}"],
        ),
        tmp_path,
    )
    assert (again.missing, again.requests, again.plans.usd_batch) == (0, 0, 0.0)


def test_a_dry_run_says_where_there_are_fewer_tasks_than_asked_for(tmp_path: Path) -> None:
    words = ["env.benchmark=examples.own_benchmark:Parcels", "data.num_episodes=100000", "data.seeds=[1]"]
    told = estimate(load(None, [*words, "teacher.provider=openai", "teacher.model_name=gpt-5.2"]), tmp_path)
    there = f"parcels has {told.episodes} tasks in the train split; all of them are played"
    assert told.lines[1] == f"data.num_episodes=100000: {there}"


def test_a_teacher_that_guesses_succeeds_as_often_as_guesses_do(tmp_path: Path) -> None:
    """Three doors, each guessed among four: .25 ^ 3 = .015625 lies in Wilson's 99.9 % interval of the collected
    rate."""
    guessing = ["env.benchmark=chain", "env.options={num_tasks: 900, length: 3, p_easy: 0.25}", "data.seeds=[1]"]
    run_job(load(None, guessing), job("collect"), {}, root=tmp_path)
    made = newest(tmp_path)
    low, high = wilson(made.n_success, made.n_episodes, level=0.999)
    assert made.n_episodes > 600 and low <= 0.25**3 <= high


def test_a_judge_is_asked_through_the_same_journal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with Emulator(answer=lambda question: '{"score": 7}') as emulator:
        for name, value in environment(emulator).items():
            monkeypatch.setenv(name, value)
        teacher = TeacherConfig(provider="anthropic", model_name="claude-haiku-4-5", mode="concurrent", preflight=False)
        asked = ScoreRequest(messages=(Message(role="user", content="do"),), action="done")
        for _ in range(2):
            waves = Waves()
            judge = judge_of(teacher, waves, Payer(folder=tmp_path, root=tmp_path))
            assert waves.run([partial(judge, asked)] * 3) == [0.7] * 3
        assert len(emulator.ledger().bills) == 1


def helped_config(run_id: str | None = RUN_ID) -> Config:
    return load(None, [*HELPED, *([f"run.id={run_id}"] if run_id else [])])


def collect_scripted(root: Path, run_id: str | None = RUN_ID) -> RunManifest:
    run_job(helped_config(run_id), job("collect"), {}, root=root, force=True)
    return the_run(root)


def the_run(root: Path) -> RunManifest:
    (run,) = DataRegistry(root / "data").query()
    return run


def content(run: RunManifest) -> dict[str, Any]:
    """Return a run's contents without times and paths: its manifest, its episodes, and the set of its log's lines."""
    manifest = json.loads((run.output_dir / "run_manifest.json").read_text())
    log = [json.loads(line) for line in (run.output_dir / "collection_log.jsonl").read_text().splitlines()]
    lines = [{name: value for name, value in line.items() if name != "seconds_since_start"} for line in log]
    return {
        "manifest": {name: value for name, value in manifest.items() if name not in OF_TIME and "sha256" not in name},
        "episodes": run.trajectories.read_bytes(),
        "log": sorted(lines, key=lambda line: str(line["episode_id"])),
    }


def stopped_after(count: int, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a collection that ends early, as by a signal."""
    append, done = TrajectoryStore.append, list[str]()

    def stopping(store: TrajectoryStore, episode: Any) -> None:
        if len(done) == count:
            raise Interrupted("stopped")
        done.append(episode.episode_id)
        append(store, episode)

    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(TrajectoryStore, "append", stopping)
        collect_scripted(root)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the contents of the collection by one process."""
    return content(collect_scripted(tmp_path_factory.mktemp("alone")))


def test_helpers_play_what_the_run_lacks_and_the_run_is_the_same(
    alone: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_after(3, tmp_path, monkeypatch)
    before = the_run(tmp_path).trajectories.read_bytes()
    assert before.count(b"\n") == 3
    help_job(helped_config(), job("collect"), {}, root=tmp_path)
    assert the_run(tmp_path).trajectories.read_bytes() == before, "a helper writes nothing into the run"
    plays = list((tmp_path / "outputs/.episodes").rglob("*.jsonl"))
    assert sum(path.read_bytes().count(b"\n") for path in plays) == 9
    monkeypatch.setattr(Session, "open", lambda session: pytest.fail(f"{session.identity} is played a second time"))
    assert content(collect_scripted(tmp_path)) == alone
    assert not list((tmp_path / "outputs/.episodes").rglob("*.jsonl")), "the run has them"


def test_a_helper_of_a_finished_collection_or_of_none_ends_with_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        help_job(helped_config(), job("collect"), {}, root=tmp_path, patience=0.0)
        assert "stage has not begun" in caplog.messages[-1]
        collect_scripted(tmp_path)
        help_job(helped_config(), job("collect"), {}, root=tmp_path)
        assert "no block is left" in caplog.messages[-1]


def test_helpers_beside_it_and_a_kill_leave_the_same_run(alone: dict[str, Any], tmp_path: Path) -> None:
    words = ("collect", "--run-id", RUN_ID, "--overrides", *HELPED)
    killed = warm.start(tmp_path, *words, "--overrides", "rollout.helpers=1")
    while not list((tmp_path / "data/runs").glob("*/trajectories.jsonl")) and killed.poll() is None:
        time.sleep(0.01)
    killed.kill()
    killed.communicate()
    done = warm.run(tmp_path, *words, "--overrides", "rollout.helpers=1")
    assert done.returncode == 0, done.stderr
    assert content(the_run(tmp_path)) == alone


def test_a_run_of_another_configuration_is_none_to_help_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped_after(2, tmp_path, monkeypatch)
    monkeypatch.setattr("r2v.stages.collect.time.sleep", lambda seconds: None)
    settings, folder = job("collect").load().sections(helped_config()), tmp_path / "outputs/.artifacts/collect-0"
    for fingerprint, found in (("0", None), (the_run(tmp_path).fingerprint, RUN_ID)):
        work = Work(folder=folder, fingerprint=fingerprint, inputs={}, root=tmp_path, helping=True)
        run = _under_way(settings, work)
        assert (run and run.run_id) == found
