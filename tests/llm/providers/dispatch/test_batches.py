"""Every fault of the emulator, through both providers: nothing is paid twice, no answer is lost, no error becomes an
answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest

from r2v.emulator import Emulator, Fault, Lifecycle, Timing
from r2v.emulator.limits import EmulatedLimits, ProviderLimits
from r2v.errors import EnvironmentFault, InputError, Interrupted
from r2v.llm.providers.anthropic import Anthropic
from r2v.llm.providers.dispatch.batches import Coalescer, Cohort
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy
from r2v.llm.providers.openai import OpenAI
from r2v.llm.providers.prices import Rate, rate_of
from r2v.llm.providers.provider import BatchLimits, BatchState, CallResult
from r2v.llm.providers.provider_requests import ProviderRequest, RequestVerdict, ResultLine, make_request
from r2v.llm.providers.remote import ProviderRemote
from r2v.llm.types import ChatModel, Request
from r2v.llm.waves import Waves
from r2v.wire.exchange import TokenCounts
from r2v.wire.message import Message
from tests.llm.jumping import JumpingLoop
from tests.llm.talk import MODELS, QUICK, converse, environment, play, remote

COUNT, TURNS = 6, 2
BOTH = ("openai", "anthropic")

MENDED = {
    "429_retry_after_2": Fault("429_retry_after_2", at=1, on="create"),
    "429_no_retry_after": Fault("429_no_retry_after", at=(1, 2), on="create"),
    "429_retry_after_date": Fault("429_retry_after_date", at=1, on="create"),
    "500_poll": Fault("500", at=(1, 2), on="poll"),
    "502_poll": Fault("502", at=1, on="poll"),
    "503_list": Fault("503", at=1, on="list"),
    "reset_poll": Fault("reset", at=1, on="poll"),
    "reset_results": Fault("reset", at=1, on="results"),
    "reset_upload": Fault("reset_upload", at=1),
    "commit_then_500": Fault("commit_then_500", at=1),
    "commit_then_529": Fault("commit_then_529", at=1),
    "commit_then_reset": Fault("commit_then_reset", at=1),
    "commit_then_silence": Fault("commit_then_silence", at=1),
    "token_limit_refused": Fault("token_limit_refused", at=1),
    "listed_late": Fault("listed_late", at=1),
    "expired_none_done": Fault("expired_none_done", at=1),
    "expired_half_done": Fault("expired_half_done", at=1),
    "expired_all_done": Fault("expired_all_done", at=1),
    "counts_zero": Fault("counts_zero"),
    "unknown_status": Fault("unknown_status"),
    "second_poller": Fault("second_poller"),
    "line_429": Fault("line_429", at=(1, 4)),
    "line_500": Fault("line_500", at=(1, 4)),
    "line_overloaded": Fault("line_overloaded", at=2),
    "line_expired": Fault("line_expired", at=(1, 2, 3)),
    "line_string_code": Fault("line_string_code", at=2),
    "line_missing": Fault("line_missing", at=(1, 6)),
    "usage_missing": Fault("usage_missing", at=1),
    "max_tokens": Fault("max_tokens", at=1),
    "u2028": Fault("u2028"),
    "lines_reversed": Fault("lines_reversed"),
    "lines_duplicated": Fault("lines_duplicated"),
    "lines_malformed": Fault("lines_malformed", at=1),
    "lines_truncated": Fault("lines_truncated", at=1),
    "lines_cut": Fault("lines_cut", at=(1, 2)),
    "context_full": Fault("context_full", at=1),
    "lines_crlf": Fault("lines_crlf"),
    "results_dropped": Fault("results_dropped", at=(1, 2)),
    "slow_trickle": Fault("slow_trickle", at=1),
    "clock_skew": Fault("clock_skew"),
}
OPENAI_ONLY = {
    "file_late_404": Fault("file_late_404", at=1),
    "file_late_400": Fault("file_late_400", at=1),
    "token_limit_failed": Fault("token_limit_failed", at=1),
    "expired_no_files": Fault("expired_no_files", at=1),
    "file_id_late": Fault("file_id_late"),
}
CASES = [(provider, name, fault) for name, fault in MENDED.items() for provider in BOTH] + [
    ("openai", name, fault) for name, fault in OPENAI_ONLY.items()
]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that starts an emulator and points both SDKs to it."""

    def made(*faults: Fault, **kwargs: Any) -> Emulator:
        settings = {"lifecycle": Lifecycle(polls=2), "timing": Timing(silence=0.2, late=0.5, trickle=0.001)} | kwargs
        emulator = Emulator(faults=faults, **settings)

        class Served:
            def __enter__(self) -> Emulator:
                emulator.__enter__()
                for name, value in environment(emulator).items():
                    monkeypatch.setenv(name, value)
                return emulator

            def __exit__(self, *error: Any) -> None:
                emulator.__exit__(*error)

        return Served()

    return made


@pytest.mark.parametrize(("provider", "name", "fault"), CASES, ids=[f"{p}-{n}" for p, n, _ in CASES])
def test_a_passing_fault_loses_nothing_and_pays_once(
    provider: str, name: str, fault: Fault, serve: Any, tmp_path: Path
) -> None:
    with serve(fault) as emulator:
        hurry = {"poll_seconds": 3.0} if name.startswith("file_late") else {}
        said = play(provider, tmp_path, count=COUNT, turns=TURNS, reconcile_after=0.8, **hurry)
        paid = emulator.ledger()
    assert [len(turns) for turns in said] == [TURNS] * COUNT, said
    assert not any(turn.startswith("!") for turns in said for turn in turns)
    assert paid.fired or name in ("clock_skew",), "the fault never fired"
    assert sorted(paid.paid().values()) == [1] * COUNT * TURNS
    rows = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_bytes().splitlines()]
    answered = [row["id"] for row in rows if row["row"] == "answer"]
    assert len(answered) == len(set(answered)) == COUNT * TURNS
    assert {row["batch"] for row in rows if row["row"] == "intent"} == {
        row["batch"] for row in rows if row["row"] in ("applied", "dropped")
    }


@pytest.mark.parametrize("provider", BOTH)
@pytest.mark.parametrize("name", ["429_retry_after_2", "429_no_retry_after", "500", "503", "529", "reset"])
def test_direct_calls_outlive_a_passing_fault(provider: str, name: str, serve: Any, tmp_path: Path) -> None:
    with serve(Fault(name, at=(1, 3), on="sync")) as emulator:
        said = play(provider, tmp_path, count=COUNT, turns=TURNS, mode="concurrent")
        assert sorted(emulator.ledger().paid().values()) == [1] * COUNT * TURNS
    assert [len(turns) for turns in said] == [TURNS] * COUNT


@pytest.mark.parametrize("provider", BOTH)
@pytest.mark.parametrize("name", ["line_400", "refusal"])
def test_a_refused_question_ends_its_conversation_alone(provider: str, name: str, serve: Any, tmp_path: Path) -> None:
    with serve(Fault(name, at=(2, 5))) as emulator:
        said = play(provider, tmp_path, count=10, turns=1)
        again = play(provider, tmp_path, count=10, turns=1)
        assert max(emulator.ledger().paid().values()) == 1
    assert sorted(len(turns) for turns in said) == [1] * 10
    assert [turns[0] for turns in said].count("!final") == 2
    assert again == said, "a refusal is remembered like an answer"


@pytest.mark.parametrize("name", ["completed_null_output", "completed_empty_output"])
def test_a_batch_whose_every_line_failed(name: str, serve: Any, tmp_path: Path) -> None:
    with serve(Fault(name, at=1)) as emulator:
        assert play("openai", tmp_path, count=3, turns=1) == [["!final"]] * 3
        assert [bill.mode for bill in emulator.ledger().bills] == ["sync"], "a plain question cleared the account"


def test_validation_names_lines_and_the_others_are_sent_again(serve: Any, tmp_path: Path) -> None:
    with serve(Fault("validation_failed", at=1)) as emulator:
        said = play("openai", tmp_path, count=3, turns=1)
        assert max(emulator.ledger().paid().values(), default=1) == 1
    assert sorted(turns[0].startswith("!") for turns in said) in ([False, False, True], [True] * 3)


@pytest.mark.parametrize(
    ("provider", "fault", "told"),
    [
        ("anthropic", Fault("results_other_host"), "results_url is on"),
        ("openai", Fault("archived"), "results are gone|not available"),
        ("anthropic", Fault("archived"), "results are gone|not available"),
        ("openai", Fault("credit_exhausted", on="create"), "check the account"),
        ("anthropic", Fault("credit_exhausted", on="create"), "credit balance is too low"),
        ("openai", Fault("401"), "check the account and the key"),
        ("anthropic", Fault("401"), "check the account and the key"),
    ],
)
def test_what_only_the_user_can_mend_ends_the_run_in_one_line(
    provider: str, fault: Fault, told: str, serve: Any, tmp_path: Path
) -> None:
    with serve(fault) as emulator:
        with pytest.raises(EnvironmentFault, match=told) as raised:
            play(provider, tmp_path, count=3, turns=1)
        assert emulator.ledger().leaks == 0
    assert "sk-" not in str(raised.value) and "\n" not in str(raised.value)
    assert not any(b"sk-" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_a_line_that_stays_unreadable_is_given_up_and_not_paid_again(serve: Any, tmp_path: Path) -> None:
    with serve(Fault("lines_malformed")) as emulator:
        said = play("openai", tmp_path, count=5, turns=1)
        assert sorted(emulator.ledger().paid().values()) == [1] * 5
    assert [turns[0] for turns in said].count("!final") == 1


@pytest.mark.parametrize("provider", BOTH)
def test_results_that_stay_cut_are_not_paid_again_and_the_same_command_goes_on(
    provider: str, serve: Any, tmp_path: Path
) -> None:
    """Bodies that end early and properly, while the batch itself counts all its answers."""
    with serve(Fault("lines_cut", at=(1, 2, 3, 4, 5))) as emulator:
        with pytest.raises(EnvironmentFault, match=r"6 of its requests are answered, and 5 downloads held 3 of them"):
            play(provider, tmp_path, count=6, turns=1)
        said = play(provider, tmp_path, count=6, turns=1)
        assert sorted(emulator.ledger().paid().values()) == [1] * 6
    assert all("conversation" in turns[0] for turns in said)


@pytest.mark.parametrize("mode", ["batch", "concurrent"])
@pytest.mark.parametrize("provider", BOTH)
def test_an_answer_without_text_is_asked_for_again_within_limits(
    provider: str, mode: str, serve: Any, tmp_path: Path
) -> None:
    with serve(Fault("no_text", at=2)) as emulator:
        said = play(provider, tmp_path / "once", count=3, turns=1, mode=mode)
        assert sorted(emulator.ledger().paid().values()) == [1, 1, 2], "it was billed, and it was asked for again"
    assert all("conversation" in turns[0] for turns in said)
    with serve(Fault("no_text")) as emulator:
        for _ in range(2):
            assert play(provider, tmp_path / "always", count=2, turns=1, mode=mode) == [["!final"]] * 2
        assert sorted(emulator.ledger().paid().values()) == [3, 3], "remembered by the second process"


def test_input_files_are_deleted_when_their_batch_is_applied(serve: Any, tmp_path: Path) -> None:
    with serve() as emulator:
        play("openai", tmp_path, count=3, turns=2)
        client = openai.OpenAI(base_url=emulator.openai_url, api_key="k")
        assert [file.id for file in client.files.list() if file.purpose == "batch"] == []
    assert not list((tmp_path / "inputs").iterdir())


@pytest.mark.parametrize("provider", BOTH)
def test_batches_are_cut_at_the_limits(provider: str, serve: Any, tmp_path: Path) -> None:
    limits = EmulatedLimits(
        openai=ProviderLimits(requests=50_000, bytes=200_000_000, queued_tokens=40),
        anthropic=ProviderLimits(requests=100_000, bytes=256_000_000, queued_requests=5),
    )
    with serve(limits=limits) as emulator:
        said = play(provider, tmp_path, count=12, turns=1, batch_size=4)
        batches = [batch for batch in emulator.batches() if not batch.errors]
        assert sorted(emulator.ledger().paid().values()) == [1] * 12
    assert all(len(turns) == 1 for turns in said) and max(batch.total for batch in batches) <= 4


def test_a_cut_journal_goes_on_and_a_damaged_one_is_named(serve: Any, tmp_path: Path) -> None:
    with serve() as emulator:
        said = play("openai", tmp_path, count=3, turns=1)
        journal = tmp_path / "journal.jsonl"
        whole = journal.read_bytes()
        journal.write_bytes(whole + b'{"row": "intent", "ba')
        assert play("openai", tmp_path, count=3, turns=1) == said
        assert journal.read_bytes() == whole
        journal.write_bytes(whole.replace(b'{"row":"created"', b'{"row"created"'))
        with pytest.raises(InputError, match=r"journal.jsonl:\d+: not a row"):
            play("openai", tmp_path, count=3, turns=1)
        assert len(emulator.ledger().bills) == 3


def leave_under_way(provider: str, folder: Path, emulator: Emulator, count: int) -> None:
    """Begin `count` conversations and leave when their batch is made."""

    async def leaving() -> list[str]:
        while len(emulator.ledger().bills) < count or b'"created"' not in (folder / "journal.jsonl").read_bytes():
            await asyncio.sleep(0.02)
        raise Interrupted("enough is under way")

    waves = Waves(max_conversations=count + 1)
    model = waves.model(remote(provider, folder))
    with pytest.raises(Interrupted, match="enough"):
        waves.run([*(partial(converse, model, n, 1) for n in range(count)), leaving])


@pytest.mark.parametrize("provider", BOTH)
def test_a_run_that_stops_keeps_the_answers_of_calls_that_are_out(provider: str, serve: Any, tmp_path: Path) -> None:
    with serve(timing=Timing(latency=0.5)) as emulator:

        async def leaving() -> list[str]:
            while emulator.peak(provider) < 3:
                await asyncio.sleep(0.01)
            raise Interrupted("time is up")

        waves = Waves(max_conversations=9)
        model = waves.model(remote(provider, tmp_path, mode="concurrent", max_concurrent=3))
        with pytest.raises(Interrupted, match="time is up"):
            waves.run([*(partial(converse, model, n, 2) for n in range(6)), leaving])
        first = len(emulator.ledger().bills)
        assert first == 3, "those that were out, and no further one"
        said = play(provider, tmp_path, count=6, turns=2, mode="concurrent")
        assert sorted(emulator.ledger().paid().values()) == [1] * 12
    assert [len(turns) for turns in said] == [2] * 6
    assert b'"lost"' not in (tmp_path / "journal.jsonl").read_bytes()


class SlowOpenAI(OpenAI):
    """A provider that confirms a batch a moment late."""

    async def create_batch(self, key: str, path: Path, file_id: str | None) -> BatchState:
        state = await super().create_batch(key, path, file_id)
        await asyncio.sleep(0.5)
        return state


class SlowAnthropic(Anthropic):
    """A provider that confirms a batch a moment late."""

    async def create_batch(self, key: str, path: Path, file_id: str | None) -> BatchState:
        state = await super().create_batch(key, path, file_id)
        await asyncio.sleep(0.5)
        return state


@pytest.mark.parametrize("provider", BOTH)
def test_a_run_that_stops_knows_the_batch_that_was_being_made(provider: str, serve: Any, tmp_path: Path) -> None:
    """So that the next run has no batch to search for."""
    rate, slow = rate_of(provider, MODELS[provider]), {"openai": SlowOpenAI, "anthropic": SlowAnthropic}[provider]
    journal = tmp_path / "journal.jsonl"
    with serve() as emulator:

        async def leaving() -> list[str]:
            while not journal.exists() or b'"sending"' not in journal.read_bytes():
                await asyncio.sleep(0.01)
            raise Interrupted("time is up")

        waves = Waves(max_conversations=9)
        model = waves.model(ProviderRemote(slow(rate), rate, tmp_path, DispatchPolicy(**QUICK), scope={"test": "a"}))
        with pytest.raises(Interrupted, match="time is up"):
            waves.run([*(partial(converse, model, n, 1) for n in range(3)), leaving])
        rows = [json.loads(line)["row"] for line in journal.read_text().splitlines()]
        assert rows.count("sending") == rows.count("created") == 1
        said = play(provider, tmp_path, count=3, turns=1)
        assert sorted(emulator.ledger().paid().values()) == [1] * 3
    assert [len(turns) for turns in said] == [1] * 3
    assert not {"unknown", "absent"} & {json.loads(line)["row"] for line in journal.read_text().splitlines()}


class AboutTo(Anthropic):
    """A provider that reports when it has listed the account's batches, right before it creates one, and then takes so
    many more turns of the event loop."""

    def __init__(self, rate: Rate, turns: int) -> None:
        super().__init__(rate)
        self.listed, self.turns = asyncio.Event(), turns

    async def list_batches(self) -> AsyncIterator[BatchState]:
        async for state in super().list_batches():
            yield state
        self.listed.set()
        for _ in range(self.turns):
            await asyncio.sleep(0)


@pytest.mark.parametrize("turns", range(12))
def test_a_run_that_stops_around_the_word_sending_leaves_nothing_to_look_for(
    turns: int, serve: Any, tmp_path: Path
) -> None:
    """The stop comes that many turns before: when the row is on disk, while it is written, and before."""
    rate = rate_of("anthropic", MODELS["anthropic"])
    with serve() as emulator:
        provider = AboutTo(rate, turns)

        async def leaving() -> list[str]:
            await provider.listed.wait()
            raise Interrupted("time is up")

        waves = Waves(max_conversations=9)
        model = waves.model(ProviderRemote(provider, rate, tmp_path, DispatchPolicy(**QUICK), scope={"test": "a"}))
        with pytest.raises(Interrupted, match="time is up"):
            waves.run([*(partial(converse, model, n, 1) for n in range(3)), leaving])
        rows = [json.loads(line)["row"] for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
        assert rows.count("sending") == rows.count("created")
        play("anthropic", tmp_path, count=3, turns=1)
        assert sorted(emulator.ledger().paid().values()) == [1] * 3


@pytest.mark.parametrize("provider", BOTH)
def test_cancelling_keeps_what_was_answered(provider: str, serve: Any, tmp_path: Path) -> None:
    with serve(lifecycle=Lifecycle(polls=10_000)) as emulator:
        leave_under_way(provider, tmp_path, emulator, 4)
        told = asyncio.run(remote(provider, tmp_path).cancel())
        assert told["batches"] == 0 and told["answered"] == len(emulator.ledger().bills)


def test_a_cancel_that_never_ends_is_left_with_75(serve: Any, tmp_path: Path) -> None:
    with serve(Fault("cancel_never_ends"), lifecycle=Lifecycle(polls=10_000)) as emulator:
        leave_under_way("openai", tmp_path, emulator, 1)
        with pytest.raises(Interrupted, match="1 batches are still being cancelled"):
            asyncio.run(remote("openai", tmp_path).cancel(patience=0.5))


def test_samples_are_questions_of_their_own_and_company_shares_an_answer(serve: Any, tmp_path: Path) -> None:
    with serve() as emulator:
        waves = Waves(max_conversations=8)
        model = waves.model(remote("openai", tmp_path, mode="concurrent"))
        request = Request(messages=(Message(role="user", content="q"),), key=("k",), num_samples=3, temperature=0.5)
        replies = waves.run([partial(model.reply, request)] * 4)
        assert len(emulator.ledger().bills) == 3 and len(replies[0].samples) == 3
        assert all(reply == replies[0] for reply in replies)


def test_identical_questions_are_asked_once_where_that_is_wished(serve: Any, tmp_path: Path) -> None:
    with serve() as emulator:
        for reuse, paid in ((False, 5), (True, 6)):
            waves = Waves(max_conversations=8)
            model = waves.model(remote("openai", tmp_path / str(reuse), mode="concurrent", reuse=reuse))
            waves.run(
                partial(model.reply, Request(messages=(Message(role="user", content="same"),), key=("k", n)))
                for n in range(5)
            )
            assert len(emulator.ledger().bills) == paid


@pytest.mark.parametrize("provider", BOTH)
def test_a_shared_system_prompt_is_cached_and_the_share_is_reported(provider: str, serve: Any, tmp_path: Path) -> None:
    shared = Message(role="system", content="be brief " * 2000)
    with serve() as emulator:
        waves = Waves(max_conversations=1)
        model = waves.model(remote(provider, tmp_path, mode="concurrent"))
        waves.run(
            partial(model.reply, Request(messages=(shared, Message(role="user", content=f"{n}")), key=("k", n)))
            for n in range(5)
        )
        bills = emulator.ledger().bills
    share = sum(bill.cached_in for bill in bills) / sum(bill.tokens_in for bill in bills)
    told = json.loads((tmp_path / "progress.json").read_text())
    assert share > 0.7 and told["cached_share"] == pytest.approx(share, abs=1e-4)
    again = remote(provider, tmp_path, mode="concurrent")
    assert asyncio.run(again.cancel())["cached_share"] == told["cached_share"], "the journal remembers"


def test_where_no_batch_can_be_had_auto_says_so_and_calls(
    serve: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    never = Timing(late=1e6)
    with serve(Fault("file_late_404"), timing=never) as emulator, caplog.at_level("INFO", logger="r2v"):
        said = play("openai", tmp_path, count=3, turns=2, mode="auto", waiting_usd_per_hour=0.0, tail=0.0)
        assert [len(turns) for turns in said] == [2] * 3 and not any(t.startswith("!") for turns in said for t in turns)
        assert {bill.mode for bill in emulator.ledger().bills} == {"sync"}
        assert max(emulator.ledger().paid().values()) == 1
    assert "at full price: provider=openai reason=404" in caplog.text


def test_where_no_batch_can_be_had_batch_mode_ends(serve: Any, tmp_path: Path) -> None:
    with serve(Fault("file_late_404"), timing=Timing(late=1e6)) as emulator:
        with pytest.raises(EnvironmentFault, match="takes no batches: 404.*teacher.mode=concurrent"):
            play("openai", tmp_path, count=3, turns=1)
        assert not emulator.ledger().bills


@pytest.mark.parametrize("provider", BOTH)
def test_calls_adapt_to_a_bucket(provider: str, serve: Any, tmp_path: Path) -> None:
    with serve(limits=EmulatedLimits(calls_per_minute=1200, burst=4), timing=Timing(latency=0.02)) as emulator:
        said = play(provider, tmp_path, count=20, turns=1, mode="concurrent", max_concurrent=8)
        assert sorted(emulator.ledger().paid().values()) == [1] * 20
        assert 1 < emulator.peak(provider) <= 8
    assert all(len(turns) == 1 and not turns[0].startswith("!") for turns in said)


@pytest.mark.parametrize("mode", ["batch", "concurrent"])
@pytest.mark.parametrize("provider", BOTH)
def test_the_dollars_of_the_progress_are_those_of_the_providers_ledger(
    provider: str, mode: str, serve: Any, tmp_path: Path
) -> None:
    """Each answer is billed by its tokens, at half the price in a batch: not at its worst case."""
    with serve() as emulator:
        play(provider, tmp_path, count=COUNT, turns=TURNS, mode=mode)
        bills = emulator.ledger().bills
    rate = rate_of(provider, MODELS[provider])
    owed = sum(
        rate.usd(
            TokenCounts(fresh=bill.tokens_in - bill.cached_in, cached=bill.cached_in, output=bill.tokens_out),
            batch=True,
        )
        for bill in bills
    ) * (1 if mode == "batch" else 2)
    shown = json.loads((tmp_path / "progress.json").read_text())
    assert len(bills) == COUNT * TURNS and shown["usd"] == pytest.approx(owed, abs=1e-6) and owed > 0


HOUR = 3600.0
BODY = {"messages": [{"role": "user", "content": "q"}], "max_tokens": 10}


def requests_at(*turns: int) -> list[ProviderRequest]:
    """Return one request for each of these turns."""
    made = []
    for number, turn in enumerate(turns):
        said = (Message(role="user", content="q"), Message(role="assistant", content="a")) * turn
        made.append(make_request("0123abcd", Request(messages=said, key=("k", number), max_tokens=10), BODY))
    return made


def cohorts(*turns: float, count: int = 10) -> list[Cohort]:
    return [Cohort(count=count, turn=turn) for turn in turns]


def held(waiting: Sequence[ProviderRequest], out: Sequence[Cohort], max_batch: int = 100) -> float:
    return Coalescer().hold(waiting, out, max_batch, typical_wait=1200.0, now=0.0)


def test_who_is_ahead_waits_for_those_behind_where_one_batch_can_carry_all() -> None:
    ahead, level, behind = requests_at(5, 5), requests_at(4, 4), requests_at(3, 3)
    out = cohorts(4.0)
    assert held(ahead, out) == 4 * 1200.0
    assert held(level, out) == held(behind, out) == 0.0, "they decide when the run ends"
    assert held(ahead, []) == 0.0, "nobody is out whom they could meet"
    assert held(ahead, out, max_batch=8) == 0.0, "12 need two batches, so nobody is met"
    assert held(ahead, cohorts(4.0, 9.0), max_batch=11) == 4 * 1200.0, "22 need two batches, and two are out"


def test_a_small_remainder_is_no_chain_of_its_own() -> None:
    ahead, level = requests_at(5, 5), requests_at(4, 4)
    assert held(ahead, cohorts(4.0), max_batch=9) == 4 * 1200.0, "all but 3 of 12 fit into one batch of 9"
    assert held(level, cohorts(4.0), max_batch=9) == 0.0, "at the same turn it would cost another wait"


def test_nobody_leaves_while_answers_are_read_and_nobody_waits_for_ever() -> None:
    coalescer = Coalescer()
    waiting = requests_at(1, 1)
    coalescer.reading = 1
    assert coalescer.hold(waiting, [], 100, 1200.0, 50.0) == 4800.0
    assert coalescer.hold(waiting, [], 100, 1200.0, 4849.0) == 1.0, "counted from when it was held first"
    assert coalescer.hold(waiting, [], 100, 1200.0, 4850.0) == 0.0
    coalescer.reading = 0
    assert coalescer.hold(waiting, cohorts(5.0), 100, 1200.0, 5000.0) == 0.0


class Lanes:
    """A provider whose n-th batch takes `hours[n]`; the last figure repeats."""

    name = "openai"
    limits = BatchLimits(requests=50_000, bytes=200_000_000, endpoint="", uploads=False)

    def __init__(self, loop: JumpingLoop, hours: Sequence[float]) -> None:
        self._loop, self._hours = loop, hours
        self.batches: list[list[str]] = []
        self._until: list[float] = []

    def request_body(self, request: Request) -> Mapping[str, Any]:
        return {"messages": [{"role": m.role, "content": m.content} for m in request.messages], "max_tokens": 50}

    def input_line(self, request: ProviderRequest) -> dict[str, Any]:
        return {"custom_id": request.custom_id, "body": request.body}

    async def create_batch(self, key: str, path: Path, file_id: str | None) -> BatchState:
        number = len(self.batches)
        self.batches.append([json.loads(line)["custom_id"] for line in path.read_text().splitlines()])
        self._until.append(self._loop.now + HOUR * self._hours[min(number, len(self._hours) - 1)])
        return await self.retrieve_batch(str(number))

    async def list_batches(self) -> AsyncIterator[BatchState]:
        for number in reversed(range(len(self.batches))):
            yield await self.retrieve_batch(str(number))

    async def retrieve_batch(self, batch_id: str) -> BatchState:
        count, done = len(self.batches[int(batch_id)]), self._loop.now >= self._until[int(batch_id)]
        return BatchState(id=batch_id, state="s", done=done, total=count, completed=count, files=("all",))

    async def results(self, state: BatchState) -> AsyncIterator[ResultLine]:
        for name in self.batches[int(state.id)]:
            verdict = RequestVerdict(kind="ok", text="yes", tokens=TokenCounts(fresh=9, output=1))
            yield ResultLine(custom_id=name, verdict=verdict)

    async def call(self, request: ProviderRequest) -> CallResult:
        raise AssertionError("batches were asked for")

    async def upload(self, path: Path) -> str:
        raise AssertionError("nothing is uploaded here")

    async def cancel_batch(self, batch_id: str) -> None:
        raise AssertionError("nothing is cancelled here")

    async def close(self) -> None:
        pass


def sizes_of(hours: Sequence[float], turns: Sequence[int], folder: Path, **policy: Any) -> tuple[list[int], float]:
    """Return the number of requests of each batch, and the hours of the whole run."""
    loop = JumpingLoop()
    provider = Lanes(loop, hours)
    settings = DispatchPolicy(mode="batch", **policy)
    remote = ProviderRemote(
        provider,
        rate_of("openai", "gpt-5.2"),
        folder,
        settings,
        scope={},
        clock=loop.clock,
        sync=lambda descriptor: None,
    )
    waves = Waves(max_conversations=len(turns))
    model = waves.model(remote)
    loop.play(waves.play(partial(talk, model, number, count) for number, count in enumerate(turns)))
    return [len(batch) for batch in provider.batches], loop.now / HOUR


async def talk(model: ChatModel, number: int, turns: int) -> None:
    for turn in range(turns):
        said = [Message(role="user", content=f"{number}")] + [Message(role="assistant", content="yes")] * turn
        await model.reply(Request(messages=tuple(said), key=("talk", number, turn), max_tokens=50))
        await asyncio.sleep(0)


def test_a_cohort_stays_one_however_many_syncs_its_answers_take(tmp_path: Path) -> None:
    """1,200 answers are journaled in three parts; conversations with the first ones wait until the last are read."""
    sizes, hours = sizes_of([1.0], [3] * 1200, tmp_path)
    assert sizes == [1200] * 3
    assert 3.0 <= hours < 3.2, "polls cost a fortieth, and no wait is lost"


def test_a_single_crowd_takes_as_long_as_its_waits(tmp_path: Path) -> None:
    """Without a limit of a batch's size a barrier is optimal, and a run is slower only by its polls."""
    waits = [0.33, 2.4, 0.1, 0.5, 7.0, 0.2]
    sizes, hours = sizes_of(waits, [2, 4, 6] * 20, tmp_path)
    assert sizes == [60, 60, 40, 40, 20, 20]
    assert sum(waits) < hours < 1.006 * sum(waits) + 6 * 12 / HOUR, "0.6 % at most, or a pause of 12 s for each"


def test_batches_of_a_limited_size_do_not_wait_for_the_slowest_of_a_turn(tmp_path: Path) -> None:
    """Two batches a turn, one of them slow in each: a barrier takes six hours."""
    sizes, hours = sizes_of([1.0, 3.0, 1.0, 1.0, 3.0], [2] * 20, tmp_path, batch_size=10)
    assert sizes == [10] * 4
    assert 4.0 <= hours < 4.1, "the quick half goes on alone, and so does the slow one"


def test_cohorts_that_drifted_apart_meet_when_one_batch_can_carry_them(tmp_path: Path) -> None:
    """Two batches of 10 at first, the second slower by a third. Half of the conversations end after a turn; the five
    that are a turn ahead then wait for the five behind, and all go on together."""
    sizes, hours = sizes_of([1.0, 1.3, 1.0], [5, 1] * 10, tmp_path, batch_size=10)
    assert sizes == [10, 10, 5, 5, 10, 10, 10]
    assert 5.3 <= hours < 5.7, "those behind never waited"
