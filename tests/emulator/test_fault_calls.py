"""Faults of a call, of a commit and of an upload, as the official clients see them."""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from r2v.emulator import Emulator, Fault, Timing
from tests.emulator.clients import (
    anthropic_client,
    body,
    create_openai,
    line,
    openai_client,
    submit_anthropic,
    submit_openai,
    upload,
)
from tests.paid import paid_bodies

Ask = Callable[[Emulator], Any]


def ask_openai(emulator: Emulator, **options: Any) -> Any:
    return openai_client(emulator, **options).chat.completions.create(**body("openai"))


def ask_anthropic(emulator: Emulator, **options: Any) -> Any:
    return anthropic_client(emulator, **options).messages.create(**body("anthropic"))


BOTH = pytest.mark.parametrize("ask", [ask_openai, ask_anthropic])


def status_of(ask: Ask, emulator: Emulator) -> tuple[int, httpx2.Headers]:
    with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)) as failed:
        ask(emulator)
    return failed.value.status_code, failed.value.response.headers


@BOTH
@pytest.mark.parametrize(
    ("name", "wait"), [("429_retry_after_2", "2"), ("429_retry_after_300", "300"), ("429_no_retry_after", None)]
)
def test_429_says_when_to_come_back_or_does_not(ask: Ask, name: str, wait: str | None) -> None:
    with Emulator(faults=[Fault(name, at=1)]) as emulator:
        status, headers = status_of(ask, emulator)
        assert (status, headers.get("retry-after")) == (429, wait)
        ask(emulator)
        assert len(emulator.ledger().bills) == 1 and emulator.ledger().fired == {f"{name}@1": [1]}


@BOTH
def test_429_retry_after_date_is_two_seconds_ahead(ask: Ask) -> None:
    with Emulator(faults=[Fault("429_retry_after_date")], clock=lambda: 1_000_000.0) as emulator:
        _, headers = status_of(ask, emulator)
        assert parsedate_to_datetime(headers["retry-after"]).timestamp() == 1_000_002


def test_openai_will_not_wait_300_s_and_gives_up_at_once() -> None:
    with Emulator(faults=[Fault("429_retry_after_300")]) as emulator:
        with pytest.raises(openai.RateLimitError):
            ask_openai(emulator, max_retries=2)
        assert emulator.ledger().fired == {"429_retry_after_300": [1]}


@BOTH
@pytest.mark.parametrize("name", ["401", "call_400", "500", "502", "503", "529"])
def test_a_refused_call_is_not_billed(ask: Ask, name: str) -> None:
    with Emulator(faults=[Fault(name, at=1)]) as emulator:
        status, headers = status_of(ask, emulator)
        assert status == int(name.removeprefix("call_")) and (headers["content-type"] == "text/html") == (name == "502")
        assert not emulator.ledger().bills
        ask(emulator)


def test_529_is_overloaded_to_anthropic() -> None:
    with Emulator(faults=[Fault("529")]) as emulator, pytest.raises(anthropic.OverloadedError):
        ask_anthropic(emulator)


def test_credit_exhausted_is_said_in_each_provider_s_way() -> None:
    with Emulator(faults=[Fault("credit_exhausted")]) as emulator:
        with pytest.raises(openai.RateLimitError) as theirs:
            ask_openai(emulator)
        assert theirs.value.code == "insufficient_quota"
        with pytest.raises(anthropic.BadRequestError, match="credit balance is too low") as ours:
            ask_anthropic(emulator)
        assert ours.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]


@BOTH
@pytest.mark.parametrize("name", ["reset", "reset_upload"])
def test_a_connection_reset_before_anything_is_done(ask: Ask, name: str) -> None:
    with Emulator(faults=[Fault(name, at=1)]) as emulator:
        with pytest.raises((openai.APIConnectionError, anthropic.APIConnectionError)) as failed:
            ask(emulator)
        # A client that is still sending when the reset comes reads an end afterwards (RemoteProtocolError).
        assert isinstance(failed.value.__cause__, (httpx2.NetworkError, httpx2.RemoteProtocolError))
        assert not emulator.ledger().bills
        ask(emulator)


def test_reset_upload_leaves_no_file() -> None:
    with Emulator(faults=[Fault("reset_upload", on="upload", at=1)]) as emulator:
        client = openai_client(emulator)
        with pytest.raises(openai.APIConnectionError):
            upload(client, [line(i) for i in range(20_000)])
        assert client.files.list().data == []
        assert create_openai(client, upload(client, [line(0)])).status == "validating"


COMMITS = ["commit_then_500", "commit_then_529", "commit_then_reset", "commit_then_silence"]
BRIEF = Timing(silence=0.2)


@pytest.mark.parametrize("name", COMMITS)
def test_a_commit_that_is_not_confirmed_is_a_batch_all_the_same(name: str) -> None:
    with Emulator(faults=[Fault(name, at=(1, 2))], timing=BRIEF) as emulator:
        client, claude = openai_client(emulator), anthropic_client(emulator)
        with pytest.raises(openai.APIError):
            submit_openai(client, 2, metadata={"batch_key": "k"})
        with pytest.raises(anthropic.APIError):
            submit_anthropic(claude, 2)
        [theirs], [ours] = list(client.batches.list()), list(claude.messages.batches.list())
        assert theirs.metadata == {"batch_key": "k"} and ours.request_counts.processing == 2
        assert len(emulator.ledger().bills) == 4


@pytest.mark.parametrize("name", COMMITS)
def test_an_sdk_left_to_retry_makes_a_second_batch(name: str) -> None:
    with Emulator(
        faults=[Fault(name, on="openai.create", at=1), Fault(name, on="anthropic.create", at=1)], timing=BRIEF
    ) as emulator:
        submit_openai(openai_client(emulator, max_retries=2), 1)
        submit_anthropic(anthropic_client(emulator, max_retries=2), 1)
        assert [batch.provider for batch in emulator.batches()] == ["openai", "openai", "anthropic", "anthropic"]
        assert emulator.ledger().paid() == {("run00001", "c0", 0): 4}


def test_silence_lasts_until_the_client_gives_up() -> None:
    with Emulator(faults=[Fault("commit_then_silence")]) as emulator:
        file_id = upload(openai_client(emulator), [line(0)])
        with pytest.raises(openai.APITimeoutError):
            create_openai(openai_client(emulator, timeout=1), file_id)
        assert len(emulator.batches()) == 1


@BOTH
def test_a_synchronous_call_can_be_paid_and_lost(ask: Ask) -> None:
    with Emulator(faults=[Fault("commit_then_reset", on="sync", at=1)]) as emulator:
        with pytest.raises((openai.APIConnectionError, anthropic.APIConnectionError)) as failed:
            ask(emulator)
        assert isinstance(failed.value.__cause__, httpx2.NetworkError)
        ask(emulator)
        assert list(paid_bodies(emulator.ledger()).values()) == [2]


def test_an_upload_can_be_kept_and_lost() -> None:
    with Emulator(faults=[Fault("commit_then_500", on="upload", at=1)]) as emulator:
        client = openai_client(emulator)
        with pytest.raises(openai.InternalServerError):
            upload(client, [line(0)])
        assert [file.filename for file in client.files.list(purpose="batch")] == ["input.jsonl"]


@pytest.mark.parametrize(
    ("name", "error"), [("file_late_404", openai.NotFoundError), ("file_late_400", openai.BadRequestError)]
)
def test_an_uploaded_file_is_visible_late(name: str, error: type[openai.APIStatusError]) -> None:
    now = [1_000_000.0]
    with Emulator(faults=[Fault(name, at=1)], clock=lambda: now[0]) as emulator:
        client = openai_client(emulator)
        file_id = upload(client, [line(0)])
        for _ in range(2):
            with pytest.raises(error):
                create_openai(client, file_id)
        now[0] += 2
        assert create_openai(client, file_id).status == "validating"
        assert create_openai(client, upload(client, [line(0)])).status == "validating"


def test_clock_skew_is_in_bodies_and_dates() -> None:
    with Emulator(faults=[Fault("clock_skew")], timing=Timing(skew=-3600)) as emulator:
        client, claude = openai_client(emulator), anthropic_client(emulator)
        before = time.time()
        answer = client.batches.with_raw_response.retrieve(submit_openai(client).id)
        assert answer.parse().created_at < before - 3000
        assert parsedate_to_datetime(answer.headers["date"]).timestamp() < before - 3000
        assert submit_anthropic(claude).created_at.timestamp() < before - 3000
        assert emulator.ledger().fired == {"clock_skew": [1]}
