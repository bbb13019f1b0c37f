"""Faults of a batch, as the official clients see them."""

from __future__ import annotations

import anthropic
import openai
import pytest

from r2v.emulator import Emulator, Fault, Lifecycle
from tests.emulator.clients import (
    anthropic_client,
    custom_id,
    finish_anthropic,
    finish_openai,
    lines_openai,
    openai_client,
    raw_openai,
    run_anthropic,
    run_openai,
    submit_anthropic,
    submit_openai,
)


def test_token_limit_refused_is_a_429_that_commits_nothing() -> None:
    with Emulator(faults=[Fault("token_limit_refused", at=(1, 2))]) as emulator:
        client, claude = openai_client(emulator), anthropic_client(emulator)
        with pytest.raises(openai.RateLimitError) as refused:
            submit_openai(client)
        assert refused.value.code == "token_limit_exceeded"
        with pytest.raises(anthropic.RateLimitError):
            submit_anthropic(claude)
        assert not emulator.batches() and not emulator.ledger().bills
        submit_openai(client)
        submit_anthropic(claude)


def test_token_limit_failed_raises_nothing_at_create() -> None:
    with Emulator(faults=[Fault("token_limit_failed", at=1)]) as emulator:
        client = openai_client(emulator)
        made = submit_openai(client)
        assert made.status == "validating"
        last = finish_openai(client, made.id)[-1]
        assert last.status == "failed" and last.output_file_id is None and last.errors and last.errors.data
        assert [error.code for error in last.errors.data] == ["token_limit_exceeded"]
        assert not emulator.ledger().bills
        assert len(run_openai(client)[1]) == 4


def test_validation_failed_names_its_lines() -> None:
    with Emulator(faults=[Fault("validation_failed")]) as emulator:
        last, _, _ = run_openai(openai_client(emulator), 3)
        assert last.status == "failed" and last.errors and last.errors.data
        assert [error.line for error in last.errors.data] == [1, 2, 3]
        assert not emulator.ledger().bills


def test_listed_late_is_there_for_whoever_knows_its_name() -> None:
    now = [1_000_000.0]
    with Emulator(faults=[Fault("listed_late")], clock=lambda: now[0]) as emulator:
        client, claude = openai_client(emulator), anthropic_client(emulator)
        name, other = submit_openai(client).id, submit_anthropic(claude).id
        assert client.batches.retrieve(name).id == name and claude.messages.batches.retrieve(other).id == other
        assert not list(client.batches.list()) and not list(claude.messages.batches.list())
        now[0] += 2
        assert len(list(client.batches.list())) == len(list(claude.messages.batches.list())) == 1


@pytest.mark.parametrize(
    ("name", "done"), [("expired_none_done", 0), ("expired_half_done", 2), ("expired_all_done", 4)]
)
def test_an_expired_batch_keeps_and_bills_what_was_run(name: str, done: int) -> None:
    with Emulator(faults=[Fault(name)]) as emulator:
        last, output, errors = run_openai(openai_client(emulator))
        assert last.status == "expired" and (last.output_file_id is None) == (done == 0)
        assert [one["custom_id"] for one in output] == [custom_id(i) for i in range(done)]
        assert [one["error"]["code"] for one in errors] == ["batch_expired"] * (4 - done)
        assert all(one["response"] is None for one in errors)
        results = run_anthropic(anthropic_client(emulator))
        assert [result.type for result in results.values()] == ["succeeded"] * done + ["expired"] * (4 - done)
        assert len(emulator.ledger().bills) == 2 * done


def test_expired_no_files_has_null_file_ids() -> None:
    with Emulator(faults=[Fault("expired_no_files")]) as emulator:
        last, _, _ = run_openai(openai_client(emulator))
        assert (last.status, last.output_file_id, last.error_file_id) == ("expired", None, None)
        assert not emulator.ledger().bills


@pytest.mark.parametrize(("name", "file_id"), [("completed_null_output", None), ("completed_empty_output", "")])
def test_completed_with_every_line_failed(name: str, file_id: str | None) -> None:
    with Emulator(faults=[Fault(name)]) as emulator:
        last, _, errors = run_openai(openai_client(emulator))
        assert last.status == "completed" and last.output_file_id == file_id
        assert last.request_counts is not None and last.request_counts.failed == 4
        assert [(one["response"]["status_code"], one["error"]) for one in errors] == [(400, None)] * 4
        assert not emulator.ledger().bills


def test_file_id_late_shows_one_look_after_completed() -> None:
    with Emulator(faults=[Fault("file_id_late")]) as emulator:
        client = openai_client(emulator)
        last = finish_openai(client, submit_openai(client).id)[-1]
        assert (last.status, last.output_file_id) == ("completed", None)
        assert last.request_counts is not None and last.request_counts.completed == 4
        assert len(lines_openai(client, client.batches.retrieve(last.id).output_file_id)) == 4


def test_counts_zero_until_the_end() -> None:
    with Emulator(faults=[Fault("counts_zero")]) as emulator:
        client = openai_client(emulator)
        looks = finish_openai(client, submit_openai(client).id)
        assert [look.request_counts.completed for look in looks if look.request_counts] == [0, 0, 4]


def test_unknown_status_passes() -> None:
    with Emulator(faults=[Fault("unknown_status")]) as emulator:
        client, claude = openai_client(emulator), anthropic_client(emulator)
        assert [look.status for look in finish_openai(client, submit_openai(client).id)] == [
            "under_review",
            "finalizing",
            "completed",
        ]
        assert [look.processing_status for look in finish_anthropic(claude, submit_anthropic(claude).id)] == [
            "under_review",
            "in_progress",
            "ended",
        ]


def test_second_poller_makes_states_skip() -> None:
    with Emulator(faults=[Fault("second_poller")], lifecycle=Lifecycle(polls=4)) as emulator:
        client = openai_client(emulator)
        assert [look.status for look in finish_openai(client, submit_openai(client).id)] == ["in_progress", "completed"]


def test_two_clients_that_poll_see_one_batch_and_pay_once() -> None:
    with Emulator() as emulator:
        one, two = anthropic_client(emulator), anthropic_client(emulator)
        name = submit_anthropic(one).id
        finish_anthropic(one, name)
        finish_anthropic(two, name)
        lists = [[line.custom_id for line in client.messages.batches.results(name)] for client in (one, two)]
        assert lists[0] == lists[1] and len(emulator.ledger().bills) == 4


def test_cancel_never_ends() -> None:
    with Emulator(faults=[Fault("cancel_never_ends")], lifecycle=Lifecycle(polls=2)) as emulator:
        client, claude = openai_client(emulator), anthropic_client(emulator)
        name, other = submit_openai(client).id, submit_anthropic(claude).id
        client.batches.cancel(name)
        claude.messages.batches.cancel(other)
        assert {client.batches.retrieve(name).status for _ in range(5)} == {"cancelling"}
        assert {claude.messages.batches.retrieve(other).processing_status for _ in range(5)} == {"canceling"}
        assert not emulator.ledger().bills


def test_archived_results_are_gone() -> None:
    with Emulator(faults=[Fault("archived")]) as emulator:
        client, claude = openai_client(emulator), anthropic_client(emulator)
        last = finish_openai(client, submit_openai(client).id)[-1]
        with pytest.raises(openai.NotFoundError):
            raw_openai(client, last.output_file_id)
        ended = finish_anthropic(claude, submit_anthropic(claude).id)[-1]
        assert ended.archived_at is not None
        with pytest.raises(anthropic.NotFoundError):
            list(claude.messages.batches.results(ended.id))


def test_results_other_host_is_sent_the_key_by_a_client_that_does_not_look() -> None:
    with Emulator(faults=[Fault("results_other_host")]) as emulator:
        claude = anthropic_client(emulator)
        ended = finish_anthropic(claude, submit_anthropic(claude).id)[-1]
        assert ended.results_url is not None and ended.results_url.startswith("http://localhost:")
        assert emulator.ledger().leaks == 0
        assert len(list(claude.messages.batches.results(ended.id))) == 4
        assert emulator.ledger().leaks == 1
