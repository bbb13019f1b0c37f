"""Faults of lines, answers and downloads, as the official clients see them."""

from __future__ import annotations

import json

import anthropic
import httpx2
import openai
import pytest

from r2v.emulator import Emulator, Fault, Timing
from tests.emulator.clients import (
    anthropic_client,
    body,
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
from tests.paid import paid_ids


def both(name: str) -> list[Fault]:
    """Return the fault at the second request of each provider."""
    return [Fault(name, on="openai", at=2), Fault(name, on="anthropic", at=2)]


@pytest.mark.parametrize(
    ("name", "status", "kind"),
    [
        ("line_400", 400, "invalid_request_error"),
        ("line_429", 429, "rate_limit_error"),
        ("line_500", 500, "api_error"),
        ("line_overloaded", 503, "overloaded_error"),
    ],
)
def test_one_line_fails_and_the_others_are_kept(name: str, status: int, kind: str) -> None:
    with Emulator(faults=both(name)) as emulator:
        last, output, errors = run_openai(openai_client(emulator))
        assert last.status == "completed" and len(output) == 3
        [failed] = errors
        assert failed["custom_id"] == custom_id(1) and failed["error"] is None
        assert failed["response"]["status_code"] == status and failed["response"]["body"]["error"]["message"]
        results = run_anthropic(anthropic_client(emulator))
        assert [result.type for result in results.values()] == ["succeeded", "errored", "succeeded", "succeeded"]
        assert results[custom_id(1)].error.error.type == kind
        assert paid_ids(emulator.ledger()) == {custom_id(i): 2 for i in (0, 2, 3)}


def test_line_credit_is_retryable_after_a_top_up_only() -> None:
    with Emulator(faults=both("line_credit")) as emulator:
        _, _, [failed] = run_openai(openai_client(emulator))
        assert failed["response"]["body"]["error"]["code"] == "insufficient_quota"
        result = run_anthropic(anthropic_client(emulator))[custom_id(1)]
        assert result.error.error.type == "invalid_request_error"
        assert "credit balance is too low" in result.error.error.message
        assert len(emulator.ledger().bills) == 6


def test_line_expired_alone() -> None:
    with Emulator(faults=both("line_expired")) as emulator:
        last, _, [failed] = run_openai(openai_client(emulator))
        assert last.status == "completed" and failed["error"]["code"] == "batch_expired"
        assert run_anthropic(anthropic_client(emulator))[custom_id(1)].type == "expired"
        assert len(emulator.ledger().bills) == 6


def test_line_string_code_is_no_status() -> None:
    with Emulator(faults=both("line_string_code")) as emulator:
        _, _, [failed] = run_openai(openai_client(emulator))
        assert failed["response"] is None and failed["error"]["code"] == "server_error"
        assert run_anthropic(anthropic_client(emulator))[custom_id(1)].error.error.type == "novel_error"
        assert len(emulator.ledger().bills) == 6


def test_line_missing_is_counted_nowhere() -> None:
    with Emulator(faults=both("line_missing")) as emulator:
        last, output, errors = run_openai(openai_client(emulator))
        assert len(output) == 3 and errors == [] and last.error_file_id is None
        assert last.request_counts is not None
        assert (last.request_counts.total, last.request_counts.completed, last.request_counts.failed) == (4, 3, 0)
        assert set(run_anthropic(anthropic_client(emulator))) == {custom_id(i) for i in (0, 2, 3)}
        assert len(emulator.ledger().bills) == 6


def test_refusal_is_an_answer_that_is_billed() -> None:
    with Emulator(faults=both("refusal")) as emulator:
        _, output, _ = run_openai(openai_client(emulator))
        choice = output[1]["response"]["body"]["choices"][0]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("content_filter", None)
        assert choice["message"]["refusal"]
        refused = run_anthropic(anthropic_client(emulator))[custom_id(1)].message
        assert (refused.stop_reason, refused.content) == ("refusal", [])
        assert len(emulator.ledger().bills) == 8


def test_max_tokens_is_an_answer_cut_at_half() -> None:
    with Emulator(faults=[Fault("max_tokens")], answer=lambda question: "a b c d") as emulator:
        chat = openai_client(emulator).chat.completions.create(**body("openai"))
        assert (chat.choices[0].finish_reason, chat.choices[0].message.content) == ("length", "a b")
        result = run_anthropic(anthropic_client(emulator), 1)[custom_id(0)]
        assert (result.message.stop_reason, result.message.content[0].text) == ("max_tokens", "a b")


def test_a_full_context_cuts_at_half_and_says_so() -> None:
    with Emulator(faults=[Fault("context_full")], answer=lambda question: "a b c d") as emulator:
        chat = openai_client(emulator).chat.completions.create(**body("openai"))
        assert (chat.choices[0].finish_reason, chat.choices[0].message.content) == ("length", "a b")
        message = run_anthropic(anthropic_client(emulator), 1)[custom_id(0)].message
        assert (message.stop_reason, message.content[0].text) == ("model_context_window_exceeded", "a b")


def test_an_answer_without_text_is_billed() -> None:
    with Emulator(faults=[Fault("no_text")]) as emulator:
        chat = openai_client(emulator).chat.completions.create(**body("openai"))
        assert (chat.choices[0].finish_reason, chat.choices[0].message.content) == ("stop", "")
        message = run_anthropic(anthropic_client(emulator), 1)[custom_id(0)].message
        assert (message.stop_reason, message.content[0].text) == ("end_turn", "")
        assert len(emulator.ledger().bills) == 2


def test_usage_missing_hides_what_was_billed() -> None:
    with Emulator(faults=[Fault("usage_missing")]) as emulator:
        _, [row], _ = run_openai(openai_client(emulator), 1)
        assert "usage" not in row["response"]["body"]
        said = anthropic_client(emulator).messages.with_raw_response.create(**body("anthropic"))
        assert "usage" not in json.loads(said.text())
        assert all(bill.tokens_out for bill in emulator.ledger().bills) and len(emulator.ledger().bills) == 2


def test_u2028_is_raw_in_the_file_and_breaks_splitlines_only() -> None:
    with Emulator(faults=[Fault("u2028")], answer=lambda question: "text") as emulator:
        client = openai_client(emulator)
        last = finish_openai(client, submit_openai(client).id)[-1]
        raw = raw_openai(client, last.output_file_id)
        assert "text\u2028\u0085".encode() in raw and raw.count(b"\n") == 4
        assert len(raw.decode().splitlines()) > 4
        assert run_anthropic(anthropic_client(emulator), 1)[custom_id(0)].message.content[0].text == "text\u2028\u0085"


def ended(emulator: Emulator) -> tuple[openai.OpenAI, str, anthropic.Anthropic, str]:
    """Yield both clients, OpenAI's output file and Anthropic's batch."""
    client, claude = openai_client(emulator), anthropic_client(emulator)
    output = finish_openai(client, submit_openai(client).id)[-1].output_file_id
    assert output is not None
    return client, output, claude, finish_anthropic(claude, submit_anthropic(claude).id)[-1].id


def first_download(name: str) -> Emulator:
    return Emulator(
        faults=[Fault(name, on="openai", at=1), Fault(name, on="anthropic", at=1)], timing=Timing(trickle=0.001)
    )


ORDER = [custom_id(i) for i in range(4)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lines_reversed", ORDER[::-1]),
        ("lines_duplicated", [name for name in ORDER for _ in range(2)]),
        ("lines_crlf", ORDER),
        ("slow_trickle", ORDER),
    ],
)
def test_a_download_whose_lines_are_all_there(name: str, expected: list[str]) -> None:
    with first_download(name) as emulator:
        client, output, claude, batch = ended(emulator)
        assert [one["custom_id"] for one in lines_openai(client, output)] == expected
        assert [one.custom_id for one in claude.messages.batches.results(batch)] == expected
        assert [one["custom_id"] for one in lines_openai(client, output)] == ORDER
        assert sum(map(len, emulator.ledger().fired.values())) == 2


def test_lines_crlf_is_in_the_bytes() -> None:
    with first_download("lines_crlf") as emulator:
        client, output, _, _ = ended(emulator)
        assert raw_openai(client, output).count(b"\r\n") == 4


def test_slow_trickle_comes_in_pieces() -> None:
    with Emulator(faults=[Fault("slow_trickle")], timing=Timing(trickle=0.02)) as emulator:
        client, output, _, _ = ended(emulator)
        with client.files.with_streaming_response.content(output) as answer:
            sizes = [len(piece) for piece in answer.iter_bytes()]
        assert len(sizes) >= 3 and sum(sizes) == len(raw_openai(client, output))


@pytest.mark.parametrize(("name", "whole"), [("lines_malformed", 2), ("lines_truncated", 3)])
def test_a_download_with_a_line_that_is_no_json(name: str, whole: int) -> None:
    with first_download(name) as emulator:
        client, output, claude, batch = ended(emulator)
        lines = [one for one in raw_openai(client, output).split(b"\n") if one]
        assert len(lines) == 4
        with pytest.raises(json.JSONDecodeError):
            json.loads(lines[whole])
        rows = []
        with pytest.raises(json.JSONDecodeError):
            rows.extend(claude.messages.batches.results(batch))
        assert len(lines_openai(client, output)) == len(list(claude.messages.batches.results(batch))) == 4


def test_a_download_that_is_cut_at_a_lines_end_looks_whole() -> None:
    with first_download("lines_cut") as emulator:
        client, output, claude, batch = ended(emulator)
        assert len(lines_openai(client, output)) == len(list(claude.messages.batches.results(batch))) == 2
        assert len(lines_openai(client, output)) == len(list(claude.messages.batches.results(batch))) == 4


def test_results_dropped_in_the_middle_and_whole_the_second_time() -> None:
    with first_download("results_dropped") as emulator:
        client, output, claude, batch = ended(emulator)
        with pytest.raises((openai.APIConnectionError, httpx2.RemoteProtocolError)):
            raw_openai(client, output)
        got = []
        with pytest.raises((anthropic.APIConnectionError, httpx2.RemoteProtocolError)):
            for one in claude.messages.batches.results(batch):
                got.append(one.custom_id)
        assert got == ORDER[:2]
        assert len(lines_openai(client, output)) == len(list(claude.messages.batches.results(batch))) == 4
        assert len(emulator.ledger().bills) == 8
