"""Jobs over the official clients and the loopback emulator: providers paid, batches or calls, and lost answers."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from r2v.emulator import Answer, EmulatedRequest, Emulator, Fault, Lifecycle, game
from r2v.errors import EnvironmentFault, UsageError
from r2v.game import (
    Agent,
    AnthropicConversationBatchService,
    BatchJob,
    BatchService,
    ClaudeSonnetAgent,
    ConversationBatchService,
    GameService,
    GPT35Agent,
    ModelAgent,
    OpenAIConversationBatchService,
)
from r2v.game.service.provider_setup import DispatchSettings, rate_of_agent
from r2v.game.service.services import run_job
from r2v.llm.providers.spending.budget import SharedBudget
from r2v.llm.providers.spending.project import ProjectLedger

KEY = "sk-not-to-be-written-anywhere"


@contextmanager
def emulated(monkeypatch: pytest.MonkeyPatch, *faults: Fault, answer: Answer = game) -> Iterator[Emulator]:
    with Emulator(answer=answer, faults=faults, lifecycle=Lifecycle(seconds=0)) as emulator:
        for name, value in {
            "OPENAI_API_KEY": KEY,
            "OPENAI_BASE_URL": emulator.openai_url,
            "ANTHROPIC_API_KEY": KEY,
            "ANTHROPIC_BASE_URL": emulator.anthropic_url,
        }.items():
            monkeypatch.setenv(name, value)
        yield emulator


def play(
    root: Path,
    service: type[BatchService],
    *models: ModelAgent,
    interactions: int = 6,
    messages: int = 3,
    **options: object,
) -> BatchJob:
    agents = [Agent(id=str(k), name=f"Agent{k}", service=model) for k, model in enumerate(models)]
    options = {"preflight": False} | options
    game = GameService(agent_service=models[0])
    one = service(game, results=root, project=root, poll_seconds=0.05, on_line=lambda line: None, **options)  # type: ignore[arg-type]
    return run_job(one, one.create_batch_job(agents, num_interactions=interactions, messages_per_interaction=messages))


GPT, CLAUDE = GPT35Agent(), ClaudeSonnetAgent()
LUNA = ModelAgent(provider="openai", model="gpt-6-luna")


def detectors_fired(emulator: Emulator) -> Counter[tuple[str, str]]:
    return Counter((bill.provider, bill.mode) for bill in emulator.ledger().bills)


@pytest.mark.parametrize("mode", ["batch", "concurrent"])
def test_a_pair_of_two_providers(mode: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Six conversations of three messages: three messages each come from either side, whichever opens."""
    with emulated(monkeypatch) as emulator:
        job = play(tmp_path, ConversationBatchService, GPT, CLAUDE, mode=mode)
        bills = emulator.ledger().bills
    assert [one.incomplete for one in job.interactions] == [None] * 6
    assert Counter(bill.provider for bill in bills) == {"openai": 9, "anthropic": 9}
    assert {bill.mode for bill in bills} == {"batch" if mode == "batch" else "sync"}
    assert {bill.model for bill in bills} == {"gpt-6.1-terra", "claude-sonnet-5-5"}, "successors of the types' models"


def test_anthropic_conversations_are_direct_calls_unless_batches_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The original never used Anthropic's batch API at all."""
    with emulated(monkeypatch) as emulator:
        play(tmp_path / "a", AnthropicConversationBatchService, CLAUDE, CLAUDE)
        assert set(detectors_fired(emulator)) == {("anthropic", "sync")}
    with emulated(monkeypatch) as emulator:
        play(tmp_path / "b", AnthropicConversationBatchService, CLAUDE, CLAUDE, mode="batch")
        assert set(detectors_fired(emulator)) == {("anthropic", "batch")}


def test_a_request_that_is_alone_is_not_batched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with emulated(monkeypatch) as emulator:
        play(tmp_path / "one", OpenAIConversationBatchService, GPT, GPT, interactions=1)
        assert detectors_fired(emulator) == {("openai", "sync"): 3}
    with emulated(monkeypatch) as emulator:
        play(tmp_path / "two", OpenAIConversationBatchService, GPT, GPT, interactions=2)
        assert detectors_fired(emulator) == {("openai", "batch"): 6}


def test_batch_size_and_max_concurrent_act_on_real_batches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with emulated(monkeypatch) as emulator:
        play(
            tmp_path, OpenAIConversationBatchService, GPT, GPT, interactions=10, messages=2, batch_size=3, mode="batch"
        )
        sizes = Counter(bill.batch for bill in emulator.ledger().bills)
    assert max(sizes.values()) == 3 and sum(sizes.values()) == 20


@pytest.mark.parametrize("most", [1, 3])
def test_max_concurrent_acts_on_direct_calls(most: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And they are concurrent: the original's client blocked its event loop, and its calls went one by one."""
    open_now, seen = 0, []

    def answer(question: EmulatedRequest) -> str:
        nonlocal open_now
        open_now += 1
        seen.append(open_now)
        time.sleep(0.05)
        open_now -= 1
        return "hello"

    with emulated(monkeypatch, answer=answer):
        play(
            tmp_path,
            AnthropicConversationBatchService,
            CLAUDE,
            CLAUDE,
            interactions=8,
            messages=2,
            max_concurrent_tasks=most,
        )
    assert max(seen) == most


def test_the_same_command_again_pays_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with emulated(monkeypatch) as emulator:
        first = play(tmp_path, OpenAIConversationBatchService, GPT, GPT)
        raw = (first.results_path / "raw" / "interactions.json").read_bytes()
        analysis = (first.results_path / "analysis" / "analysis.json").read_bytes()
        again = play(tmp_path, OpenAIConversationBatchService, GPT, GPT)
        assert len(emulator.ledger().bills) == 18
    assert (again.results_path / "raw" / "interactions.json").read_bytes() == raw
    assert (again.results_path / "analysis" / "analysis.json").read_bytes() == analysis


@pytest.mark.parametrize("mode", ["batch", "concurrent"])
def test_one_refused_message_costs_one_conversation(mode: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The original sent everything again and put the error's text into the conversation."""
    with emulated(monkeypatch, Fault("refusal", at=8)) as emulator:
        job = play(tmp_path, OpenAIConversationBatchService, GPT, GPT, mode=mode)
        paid = emulator.ledger().paid()
    (broken,) = (one for one in job.interactions if one.incomplete is not None)
    assert "refus" in broken.incomplete
    assert len(broken.messages) == 1 and set(paid.values()) == {1}
    assert len(paid) == 18 - (3 - 1 - 1)
    analysis = json.loads((job.results_path / "analysis" / "analysis.json").read_text())
    assert (analysis["overall"]["interactions"], analysis["overall"]["incomplete"]) == (5, 1)
    assert list(analysis["data"]["incomplete_reasons"].values()) == [1]


@pytest.mark.parametrize(
    "fault",
    [
        Fault("expired_half_done", at=1),
        Fault("lines_reversed"),
        Fault("lines_duplicated"),
        Fault("u2028"),
        Fault("line_missing", at=2),
        Fault("line_500", at=(1, 4)),
    ],
    ids=lambda fault: fault.name,
)
def test_what_is_answered_is_kept_and_only_the_rest_asked_again(
    fault: Fault, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with emulated(monkeypatch, fault) as emulator:
        job = play(tmp_path, OpenAIConversationBatchService, GPT, GPT)
        paid = emulator.ledger().paid()
        assert emulator.ledger().fired
    assert [one.incomplete for one in job.interactions] == [None] * 6
    assert len(paid) == 18 and set(paid.values()) == {1}


def test_no_key_is_one_line_before_anything_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="OPENAI_API_KEY is not set"):
        play(tmp_path, OpenAIConversationBatchService, GPT, GPT)
    assert list(tmp_path.iterdir()) == []


def test_no_key_reaches_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with emulated(monkeypatch):
        play(tmp_path, ConversationBatchService, GPT, CLAUDE, mode="batch", interactions=2, messages=2)
    assert not any(KEY.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_two_models_of_one_provider_have_journals_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with emulated(monkeypatch):
        job = play(tmp_path, OpenAIConversationBatchService, GPT, LUNA, GPT35Agent(max_tokens=200))
    assert {path.name for path in (job.results_path / "journal").iterdir()} == {
        "openai_gpt-6.1-terra_t1_m300",
        "openai_gpt-6-luna_t1_m300",
        "openai_gpt-6.1-terra_t1_m200",
    }


def test_a_game_shares_replies_cap_and_the_call_before_it_with_its_project(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with emulated(monkeypatch) as emulator, caplog.at_level("INFO", logger="r2v"):
        play(tmp_path, ConversationBatchService, GPT, CLAUDE, mode="concurrent", preflight=True)
        bills = emulator.ledger().bills
        assert len(bills) == 18 + 2, "a call before each model's first request"
        assert "provider=openai model=gpt-6.1-terra answered=9 " in caplog.text
        assert "provider=anthropic model=claude-sonnet-5-5 answered=9 " in caplog.text
        play(tmp_path, BatchService, GPT, CLAUDE, preflight=True)
        assert len(emulator.ledger().bills) == 20, "the same game by another service asks what was answered"
        ledger = ProjectLedger(tmp_path)
        books = [ledger.book(entry) for entry in ledger.entries()]
        assert [book.state for book in books] == ["closed"] * 4 and sum(book.answered for book in books) == 18
        spent = sum(book.usd for book in books)
        ledger.set_cap(spent + 0.01)
        with pytest.raises(EnvironmentFault, match=r"teacher.project_max_usd=.*r2v providers ledger --max-usd"):
            play(tmp_path, ConversationBatchService, GPT, CLAUDE, mode="concurrent", interactions=60)
        assert sum(ledger.committed(entry) for entry in ledger.entries()) <= spent + 0.01


def test_what_a_model_refuses_ends_a_game_before_it_begins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nobodys = ModelAgent(provider="openai", model="gpt-9-none", usd_in=1.0, usd_out=1.0)
    with emulated(monkeypatch) as emulator:
        with pytest.raises(EnvironmentFault, match="gpt-9-none"):
            play(tmp_path, OpenAIConversationBatchService, nobodys, nobodys, preflight=True)
        assert not emulator.ledger().bills


def test_a_model_without_a_price_is_told_the_keys_of_a_game() -> None:
    with pytest.raises(
        UsageError, match=r"^model=mine: no price .*usd_in and usd_out of its agent \(--overrides usd_in"
    ):
        rate_of_agent(ModelAgent(provider="openai", model="mine"))
    assert rate_of_agent(ModelAgent(provider="openai", model="mine", usd_in=1.0, usd_out=2.0)).output == 2.0


def test_batch_first_waits_for_every_batch_but_a_lone_request(tmp_path: Path) -> None:
    dispatch = DispatchSettings(
        mode="batch_first",
        batch_size=10,
        max_concurrent=5,
        conversations=49,
        run="x",
        folder=tmp_path,
        budget=SharedBudget(None),
    )
    policy = dispatch.policy()
    assert (policy.mode, policy.waiting_usd_per_hour) == ("auto", 0.0)
    assert 1 <= policy.tail * 49 < 2
    assert replace(dispatch, mode="batch").policy().mode == "batch"
