"""Stages, helpers and experiments of one project: each distinct (request, draw) is billed once, whichever process is
killed."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from r2v.cli.main import main
from r2v.config import load
from r2v.data.store import StoredEpisodes
from r2v.emulator import Emulator, Fault, Lifecycle
from r2v.llm.providers.prices import rate_of
from r2v.llm.providers.spending.project import ProjectLedger
from r2v.pipeline.jobs import job
from r2v.pipeline.run import run_here, run_job
from r2v.wire.exchange import TokenCounts
from tests import trust, warm
from tests.llm.talk import HeldLifecycle, environment

RATE = rate_of("openai", "gpt-5.2")
SMALL = (
    "env.options.num_tasks=60",
    "env.options.num_heldout=0",
    "evaluation.methods=[slm_base,llm_only]",
    "evaluation.seeds=[1]",
    "evaluation.num_tasks=4",
    "evaluation.conditions=[clean]",
    "evaluation.bootstrap=20",
    "teacher.provider=openai",
    "teacher.model_name=gpt-5.2",
    "teacher.max_usd=50",
    "teacher.max_tokens=64",
    "teacher.mode=batch",
    "teacher.preflight=false",
    "teacher.flush_seconds=0.2",
    "teacher.poll_seconds=0.02",
    "teacher.reconcile_after=0.2",
    "rollout.workers=1",
    "rollout.episodes_per_block=1",
)
CHAIN = (
    "teacher.provider=openai",
    "teacher.model_name=gpt-5.2",
    "teacher.max_usd=50",
    "teacher.max_tokens=64",
    "teacher.mode=batch",
    "teacher.preflight=false",
    "teacher.flush_seconds=0.2",
    "teacher.poll_seconds=0.02",
    "teacher.reconcile_after=0.2",
    "rollout.workers=1",
    "evaluation.conditions=[noisy]",
    "evaluation.bootstrap=20",
)
ROUTERS = (
    "router.budget=0.1",
    "router.budget=0.4",
    "router.model=constant",
    "router.l2=0.05",
    "router.features=[uncertainty,progress]",
    "router.label=disagreement",
)
POINTS = ((2, "[1]"), (2, "[1,2]"), (3, "[2]"), (4, "[2,3]"), (5, "[1]"), (5, "[1,2,3]"))
"""Numbers of tasks, and seeds."""
Made = dict[str, bytes]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty checkout as working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.executable", warm.python())
    monkeypatch.setenv("PYTHONPATH", str(warm.ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    with Emulator(answer="desk", lifecycle=Lifecycle(polls=1)) as emulator:
        sent_to(emulator, monkeypatch)
        yield emulator


def sent_to(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(emulator).items():
        monkeypatch.setenv(name, value)


def evaluated(root: Path, *overrides: str) -> Made:
    """Evaluate; return the teacher's episodes by file."""
    made = run_job(load(None, [*SMALL, *overrides]), job("evaluate"), {}, root=root).artifact
    return {
        path.name: "".join(f"{episode}\n" for episode in list(StoredEpisodes(path))).encode()
        for path in sorted((made.folder / "episodes").rglob("llm_only.jsonl*"))
    }


def draws(emulator: Emulator) -> Counter[tuple[str, int, str]]:
    """Return how often each (draw, turn, body) was billed, over all journals."""
    return Counter((bill.turn[1], bill.turn[2], bill.body_sha256) for bill in emulator.ledger().bills if bill.turn)


def billed(emulator: Emulator) -> float:
    """Return the total of the provider's ledger in USD."""
    counts = [
        (TokenCounts(fresh=one.tokens_in - one.cached_in, cached=one.cached_in, output=one.tokens_out), one.mode)
        for one in emulator.ledger().bills
    ]
    return sum(RATE.usd(tokens, batch=mode == "batch") for tokens, mode in counts)


def test_another_statistic_seed_budget_and_experiment_pay_for_what_is_new(project: Path, provider: Emulator) -> None:
    first = evaluated(project)
    paid = len(provider.ledger().bills)
    evaluated(project, "evaluation.bootstrap=30")
    shutil.rmtree(project / "outputs/.episodes")  # episodes are played again, and no request is paid again
    assert evaluated(project, "evaluation.bootstrap=40") == first and len(provider.ledger().bills) == paid
    evaluated(project, "evaluation.seeds=[1,2]")
    more = len(provider.ledger().bills)
    assert paid < more and set(draws(provider).values()) == {1}
    shutil.rmtree(project / "outputs/.episodes")
    for price in range(6 if trust.whole_suites else 2):
        evaluated(project, "evaluation.seeds=[1,2]", f"cost.llm.input={price}")
    assert len(provider.ledger().bills) == more, "the points of a sweep ask what was asked"
    for tasks, seeds in POINTS if trust.whole_suites else POINTS[3:5]:
        shutil.rmtree(project / "outputs/.episodes")
        evaluated(project, f"evaluation.num_tasks={tasks}", f"evaluation.seeds={seeds}")
    assert len(provider.ledger().bills) > more and set(draws(provider).values()) == {1}, "each point pays what is new"


@pytest.mark.parametrize("at", [1, 2, 3, 5, 8] if trust.whole_suites else [2])
def test_an_evaluation_that_is_killed_leaves_its_batches_to_whoever_asks_the_same(
    at: int, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldLifecycle()
    with Emulator(answer="desk", lifecycle=held) as emulator:
        sent_to(emulator, monkeypatch)
        dying = warm.start(project, "evaluate", "--overrides", *SMALL)
        while len(emulator.ledger().bills) < at and dying.poll() is None:
            held.end_those_made()
            with suppress(subprocess.TimeoutExpired):
                dying.wait(0.1)
        dying.send_signal(signal.SIGKILL)
        dying.communicate()
        held.release()
        said = evaluated(project, "evaluation.bootstrap=30")
        assert set(draws(emulator).values()) == {1}
        count = len(emulator.ledger().bills)
        assert evaluated(project) == said and len(emulator.ledger().bills) == count
        assert main(["providers", "ledger"]) == 0


def test_with_four_helpers_every_question_is_paid_once(project: Path, provider: Emulator) -> None:
    alone = evaluated(project)
    paid = draws(provider)
    for place in ("outputs", "results"):
        shutil.rmtree(project / place)
    assert main(["evaluate", "--overrides", *SMALL, "--overrides", "rollout.helpers=4"]) == 0
    assert draws(provider) == Counter(dict.fromkeys(paid, 2)), "a project that knows nothing pays all of it, once"
    assert evaluated(project) == alone


def test_four_helpers_and_failing_calls_never_pass_the_cap(
    project: Path, provider: Emulator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated(project, "teacher.mode=concurrent")
    cost = billed(provider)
    for place in ("outputs", "results"):
        shutil.rmtree(project / place)
    failing = [
        Fault("500", at=tuple(range(5, 400, 12)), on="sync"),
        Fault("commit_then_reset", at=tuple(range(9, 400, 12))),
    ]
    with Emulator(answer="desk", faults=failing) as emulator:
        sent_to(emulator, monkeypatch)
        cap = cost / 2 + RATE.worst_case(12_000, 64, batch=False)
        words = ["evaluate", "--overrides", *SMALL, "teacher.mode=concurrent", f"teacher.max_usd={cap}"]
        assert main([*words, "--overrides", "rollout.helpers=4"]) == 5
        said = capsys.readouterr().err
        print(f"four helpers and failing calls were billed ${billed(emulator):.6f} under a cap of ${cap:.6f}")
        assert "teacher.max_usd=" in said and 0 < billed(emulator) <= cap
        answered = _answered(project)
        assert main(words[:-1]) == 0
        assert max(_answers(project).values()) == 1 and answered <= _answered(project)


def test_what_one_stage_of_a_pipeline_has_spent_is_missing_from_the_cap_of_the_next(
    project: Path, provider: Emulator, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated(project, "teacher.mode=concurrent")
    before = billed(provider)
    words = ["evaluate", "--overrides", *SMALL, "teacher.mode=concurrent", "evaluation.seeds=[7]"]
    assert main([*words, f"teacher.max_usd={before}"]) == 5
    said = capsys.readouterr().err
    assert f"teacher.max_usd={before}: ${before:.4f} are spent" in said
    assert "  price of the rest: stages=evaluate..ablations likely_usd=" in said
    assert billed(provider) == before
    assert main([*words, f"teacher.max_usd={3 * before}"]) == 0
    assert before < billed(provider) < 3 * before and max(draws(provider).values()) == 1
    assert {entry.payer for entry in ProjectLedger(project).entries()} == {"desk_noisy"}


def _answers(project: Path) -> Counter[tuple[str, ...]]:
    """Return how often each request was answered, over all journals."""
    found: Counter[tuple[str, ...]] = Counter()
    for path in project.glob("outputs/.artifacts/*/.provider/**/journal.jsonl"):
        for row in map(json.loads, path.read_text().splitlines()):
            if row["row"] == "answer":
                found[(*row["id"].split("-")[1:3], row["sha256"])] += 1
    return found


def _answered(project: Path) -> set[Any]:
    return set(_answers(project))


def test_a_run_of_a_project_that_was_answered_needs_no_call_before_it(project: Path, provider: Emulator) -> None:
    for bootstrap in (30, 40):
        evaluated(project, "teacher.preflight=true", f"evaluation.bootstrap={bootstrap}", "evaluation.num_tasks=1")
        shutil.rmtree(project / "outputs/.episodes")
    journals = project.glob("outputs/.artifacts/*/.provider/journal.jsonl")
    assert sum(path.read_text().count('"preflight"') for path in journals) == 1


@pytest.mark.whole
def test_six_routers_and_killed_ablations_pay_each_draw_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Emulator(answer="desk", lifecycle=Lifecycle(polls=1)) as emulator:
        sent_to(emulator, monkeypatch)
        run_here(load(str(trust.MICRO), list(CHAIN)), without=["ablations"])
        chain = len(emulator.ledger().bills)
        assert chain > 300 and set(draws(emulator).values()) == {1}
        words = ["ablations", "--config", str(trust.MICRO), "--overrides", *CHAIN]
        for more in (4, 10, 17):
            dying = warm.start(project, *words)
            while len(emulator.ledger().bills) < chain + more and dying.poll() is None:
                time.sleep(0.01)
            dying.send_signal(signal.SIGKILL)
            dying.communicate()
            assert dying.returncode in (0, -signal.SIGKILL)
        ended = warm.start(project, *words)
        told = ended.communicate(timeout=1200)[1]
        assert ended.returncode == 0, told
        assert set(draws(emulator).values()) == {1}, "killed three times, and nothing twice"
        for point in ROUTERS:
            config = load(str(trust.MICRO), [*CHAIN, point])
            run_here(config, start="router", without=["ablations"])
        assert set(draws(emulator).values()) == {1}, "six routers ask what is new, once"
        paid = len(emulator.ledger().bills)
        run_here(
            load(str(trust.MICRO), [*CHAIN, ROUTERS[0], "evaluation.bootstrap=30"]),
            start="evaluate",
            without=["ablations"],
        )
        assert len(emulator.ledger().bills) == paid
