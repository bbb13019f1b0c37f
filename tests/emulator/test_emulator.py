"""The emulator without faults behaves towards the official clients as the providers publish it."""

from __future__ import annotations

import json
import threading

import anthropic
import openai
import pytest

from r2v.emulator import EmulatedLimits, EmulatedRequest, Emulator, Lifecycle, ProviderLimits
from tests.emulator.clients import (
    anthropic_client,
    body,
    create_openai,
    custom_id,
    finish_anthropic,
    finish_openai,
    line,
    lines_openai,
    openai_client,
    run_anthropic,
    run_openai,
    submit_anthropic,
    submit_openai,
    upload,
)
from tests.paid import paid_bodies, paid_ids


def upper(question: EmulatedRequest) -> str:
    return question.messages[-1].content.upper()


def test_synchronous_calls_of_all_three_kinds_answer_and_are_billed_by_their_custom_id() -> None:
    with Emulator(answer=upper) as emulator:
        client, claude = openai_client(emulator), anthropic_client(emulator)
        named = {"X-R2V-Custom-Id": custom_id(0)}
        chat = client.chat.completions.create(**body("openai", "a chat"), extra_headers=named)
        response = client.responses.create(
            model="another-model", input="a response", metadata={"custom_id": custom_id(1)}
        )
        message = claude.messages.create(**body("anthropic", "a message", metadata={"user_id": custom_id(2)}))
        assert chat.choices[0].message.content == "A CHAT" and chat.choices[0].finish_reason == "stop"
        assert response.output_text == "A RESPONSE"
        assert message.content[0].text == "A MESSAGE" and message.stop_reason == "end_turn"
        assert chat.usage is not None and (chat.usage.prompt_tokens, chat.usage.completion_tokens) == (2, 2)
        assert (message.usage.input_tokens, message.usage.output_tokens) == (2, 2)
        assert emulator.ledger().paid() == {("run00001", f"c{i}", 0): 1 for i in range(3)}
        assert {bill.mode for bill in emulator.ledger().bills} == {"sync"}


def test_openai_batch_goes_through_its_states_and_keeps_its_metadata() -> None:
    with Emulator(answer=upper, lifecycle=Lifecycle(polls=4)) as emulator:
        client = openai_client(emulator)
        made = submit_openai(client, 4, metadata={"batch_key": "k1"})
        assert made.status == "validating" and made.request_counts is not None and made.request_counts.total == 0
        looks = finish_openai(client, made.id)
        assert [look.status for look in looks] == ["in_progress", "in_progress", "finalizing", "completed"]
        assert [look.request_counts.completed for look in looks if look.request_counts] == [1, 2, 3, 4]
        last = looks[-1]
        assert last.error_file_id is None and last.usage is not None and last.usage.output_tokens == 8
        answers = {
            one["custom_id"]: one["response"]["body"]["choices"][0]["message"]["content"]
            for one in lines_openai(client, last.output_file_id)
        }
        assert answers == {custom_id(i): f"HELLO {i}" for i in range(4)}
        assert [batch.metadata for batch in client.batches.list()] == [{"batch_key": "k1"}]


def test_anthropic_batch_counts_stay_zero_until_it_has_ended_and_has_no_metadata() -> None:
    with Emulator(answer=upper) as emulator:
        client = anthropic_client(emulator)
        looks = finish_anthropic(client, submit_anthropic(client, 4).id)
        assert [look.processing_status for look in looks] == ["in_progress", "in_progress", "ended"]
        counts = [look.request_counts for look in looks]
        assert [(count.processing, count.succeeded) for count in counts] == [(4, 0), (4, 0), (0, 4)]
        results = {one.custom_id: one.result for one in client.messages.batches.results(looks[-1].id)}
        assert {name: result.message.content[0].text for name, result in results.items()} == {
            custom_id(i): f"HELLO {i}" for i in range(4)
        }
        assert [batch.to_dict().get("metadata") for batch in client.messages.batches.list()] == [None]


def test_an_accepted_batch_is_billed_once_though_nobody_looks_and_however_often_it_is_read() -> None:
    with Emulator() as emulator:
        client, claude = openai_client(emulator), anthropic_client(emulator)
        submit_openai(client, 3)
        assert sum(paid_ids(emulator.ledger()).values()) == 3
        name = submit_anthropic(claude, 2).id
        finish_anthropic(claude, name)
        for _ in range(3):
            assert len(list(claude.messages.batches.results(name))) == 2
        assert emulator.ledger().paid() == {("run00001", f"c{i}", 0): times for i, times in enumerate((2, 2, 1))}


def test_the_same_body_is_one_body_in_a_batch_and_out_of_it() -> None:
    with Emulator() as emulator:
        client = openai_client(emulator)
        _, [row], _ = run_openai(client, 1)
        said = client.chat.completions.create(**body("openai", "hello 0"))
        assert row["response"]["body"]["choices"][0]["message"]["content"] == said.choices[0].message.content
        assert list(paid_bodies(emulator.ledger()).values()) == [2]


def test_listings_are_newest_first_and_paged() -> None:
    with Emulator() as emulator:
        client, claude = openai_client(emulator), anthropic_client(emulator)
        names = [submit_openai(client, 1).id for _ in range(5)]
        others = [submit_anthropic(claude, 1).id for _ in range(5)]
        assert [batch.id for batch in client.batches.list(limit=2)] == names[::-1]
        assert [batch.id for batch in claude.messages.batches.list(limit=2)] == others[::-1]
        back = claude.messages.batches.list(limit=2, before_id=others[0])
        assert [batch.id for batch in back.data] == [others[2], others[1]] and back.has_more


def test_cancelling_keeps_and_bills_what_was_run_and_books_back_the_rest() -> None:
    with Emulator(lifecycle=Lifecycle(polls=4)) as emulator:
        client, claude = openai_client(emulator), anthropic_client(emulator)
        name, other = submit_openai(client, 4).id, submit_anthropic(claude, 4).id
        for _ in range(2):
            client.batches.retrieve(name)
            claude.messages.batches.retrieve(other)
        assert client.batches.cancel(name).status == "cancelling"
        assert claude.messages.batches.cancel(other).processing_status == "canceling"
        last = finish_openai(client, name)[-1]
        assert last.status == "cancelled"
        assert [one["custom_id"] for one in lines_openai(client, last.output_file_id)] == [custom_id(0), custom_id(1)]
        assert {one["error"]["code"] for one in lines_openai(client, last.error_file_id)} == {"batch_cancelled"}
        ended = finish_anthropic(claude, other)[-1]
        assert (ended.request_counts.succeeded, ended.request_counts.canceled) == (2, 2)
        assert [one.result.type for one in claude.messages.batches.results(other)] == [
            "succeeded",
            "succeeded",
            "canceled",
            "canceled",
        ]
        assert paid_ids(emulator.ledger()) == {custom_id(0): 2, custom_id(1): 2}
        with pytest.raises(openai.BadRequestError):
            client.batches.cancel(name)


def test_an_anthropic_batch_is_deleted_only_when_it_has_ended() -> None:
    with Emulator() as emulator:
        claude = anthropic_client(emulator)
        name = submit_anthropic(claude, 1).id
        with pytest.raises(anthropic.BadRequestError):
            claude.messages.batches.delete(name)
        finish_anthropic(claude, name)
        claude.messages.batches.delete(name)
        with pytest.raises(anthropic.NotFoundError):
            claude.messages.batches.retrieve(name)


def test_without_a_key_nothing_is_answered() -> None:
    with Emulator() as emulator, pytest.raises(openai.AuthenticationError):
        openai_client(emulator, default_headers={"Authorization": ""}).batches.list()


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([], "empty_file"),
        ([line(0), line(0)], "duplicate_custom_id"),
        ([line(0), line(1, body=body("openai", model="another-model"))], "mismatched_model"),
        ([line(0, url="/v1/responses")], "mismatched_url"),
        ([line(0, body=None)], "invalid_json_line"),
    ],
)
def test_openai_refuses_a_bad_input_file_while_it_validates(lines: list[dict[str, object]], code: str) -> None:
    with Emulator() as emulator:
        client = openai_client(emulator)
        made = create_openai(client, upload(client, lines))
        last = finish_openai(client, made.id)[-1]
        assert last.status == "failed" and last.errors is not None and last.errors.data is not None
        assert code in {error.code for error in last.errors.data}
        assert not emulator.ledger().bills


@pytest.mark.parametrize(
    "requests",
    [
        [{"custom_id": "a b", "params": body("anthropic")}],
        [{"custom_id": "a", "params": body("anthropic")}] * 2,
        [],
    ],
)
def test_anthropic_refuses_bad_names_at_create(requests: list[dict[str, object]]) -> None:
    with Emulator() as emulator, pytest.raises(anthropic.BadRequestError):
        anthropic_client(emulator).messages.batches.create(requests=requests)  # type: ignore[arg-type]


def test_anthropic_looks_at_parameters_when_the_request_is_run() -> None:
    with Emulator() as emulator:
        claude = anthropic_client(emulator)
        params = body("anthropic")
        del params["max_tokens"]
        name = claude.messages.batches.create(requests=[{"custom_id": "a", "params": params}]).id  # type: ignore[typeddict-item]
        finish_anthropic(claude, name)
        [one] = claude.messages.batches.results(name)
        assert one.result.type == "errored" and one.result.error.error.type == "invalid_request_error"


SMALL = EmulatedLimits(
    openai=ProviderLimits(requests=3, bytes=2_000, batches_per_hour=4, queued_tokens=7),
    anthropic=ProviderLimits(requests=3, bytes=2_000, batches_per_hour=2, queued_requests=4),
)


def test_limits_of_an_openai_batch() -> None:
    with Emulator(limits=SMALL) as emulator:
        client = openai_client(emulator)

        def codes(name: str) -> set[str | None]:
            errors = finish_openai(client, name)[-1].errors
            return {error.code for error in (errors.data or [])} if errors else set()

        assert codes(submit_openai(client, 4).id) == {"too_many_requests", "token_limit_exceeded"}
        waiting = submit_openai(client, 3).id
        assert codes(submit_openai(client, 1).id) == {"token_limit_exceeded"}
        assert codes(waiting) == set()
        assert codes(submit_openai(client, 1).id) == set()
        with pytest.raises(openai.RateLimitError, match="in the last hour"):
            submit_openai(client, 1)
        with pytest.raises(openai.BadRequestError, match="too large"):
            upload(client, [line(i) for i in range(20)])


def test_limits_of_an_anthropic_batch() -> None:
    with Emulator(limits=SMALL) as emulator:
        claude = anthropic_client(emulator)
        with pytest.raises(anthropic.BadRequestError):
            submit_anthropic(claude, 4)
        with pytest.raises(anthropic.RequestTooLargeError):
            submit_anthropic(claude, 20)
        first = submit_anthropic(claude, 3).id
        with pytest.raises(anthropic.RateLimitError, match="processing queue"):
            submit_anthropic(claude, 2)
        finish_anthropic(claude, first)
        submit_anthropic(claude, 2)
        with pytest.raises(anthropic.RateLimitError, match="rate limit"):
            submit_anthropic(claude, 1)


def test_the_token_bucket_says_how_full_it_is_and_when_to_come_back() -> None:
    now = [1_000_000.0]
    with Emulator(limits=EmulatedLimits(calls_per_minute=6, burst=2), clock=lambda: now[0]) as emulator:
        client, claude = openai_client(emulator), anthropic_client(emulator)
        left = [client.chat.completions.with_raw_response.create(**body("openai")).headers for _ in range(2)]
        assert [headers["x-ratelimit-remaining-requests"] for headers in left] == ["1", "0"]
        assert left[1]["x-ratelimit-reset-requests"] == "20.000s"
        with pytest.raises(openai.RateLimitError) as refused:
            client.chat.completions.create(**body("openai"))
        assert refused.value.response.headers["retry-after"] == "10"
        theirs = claude.messages.with_raw_response.create(**body("anthropic")).headers
        assert theirs["anthropic-ratelimit-requests-remaining"] == "1"
        assert theirs["anthropic-ratelimit-requests-reset"].startswith("1970-01-12T13:46:50")
        now[0] += 10
        client.chat.completions.create(**body("openai"))
        assert len(emulator.ledger().bills) == 4


def test_a_shared_system_prompt_is_cached_where_each_provider_would() -> None:
    prefix = "word " * 1100
    with Emulator() as emulator:
        client, claude = openai_client(emulator), anthropic_client(emulator)
        system = [{"role": "system", "content": prefix}]
        asked = [
            client.chat.completions.create(
                **body("openai") | {"messages": [*system, {"role": "user", "content": str(i)}]}
            ).usage
            for i in range(2)
        ]
        assert [
            usage.prompt_tokens_details.cached_tokens for usage in asked if usage and usage.prompt_tokens_details
        ] == [0, 1100]
        block = {"type": "text", "text": prefix, "cache_control": {"type": "ephemeral", "ttl": "1h"}}
        marked = [claude.messages.create(**body("anthropic", system=[block])).usage for _ in range(2)]
        assert [(u.cache_creation_input_tokens, u.cache_read_input_tokens, u.input_tokens) for u in marked] == [
            (1100, 0, 1),
            (0, 1100, 1),
        ]
        unmarked = claude.messages.create(**body("anthropic", system=prefix + "x")).usage
        assert unmarked.cache_creation_input_tokens == unmarked.cache_read_input_tokens == 0


def test_max_tokens_cuts_an_answer() -> None:
    with Emulator(answer=lambda question: "one two three four") as emulator:
        chat = openai_client(emulator).chat.completions.create(**body("openai", max_tokens=2))
        message = anthropic_client(emulator).messages.create(**body("anthropic", max_tokens=3))
        assert (chat.choices[0].message.content, chat.choices[0].finish_reason) == ("one two", "length")
        assert (message.content[0].text, message.stop_reason) == ("one two three", "max_tokens")


def test_a_batch_of_seconds_ends_by_the_clock_and_its_results_expire() -> None:
    now = [1_000_000.0]
    with Emulator(lifecycle=Lifecycle(seconds=600), clock=lambda: now[0]) as emulator:
        client, claude = openai_client(emulator), anthropic_client(emulator)
        name, other = submit_openai(client).id, submit_anthropic(claude).id
        for seconds, status in ((0, "validating"), (100, "in_progress"), (400, "finalizing"), (100, "completed")):
            now[0] += seconds
            assert client.batches.retrieve(name).status == status
        ended = claude.messages.batches.retrieve(other)
        assert ended.processing_status == "ended" and ended.archived_at is None
        now[0] += 29 * 86_400
        assert claude.messages.batches.retrieve(other).archived_at is not None
        with pytest.raises(anthropic.NotFoundError):
            list(claude.messages.batches.results(other))


def test_peak_is_the_number_of_calls_in_flight() -> None:
    together = threading.Barrier(4, timeout=30)
    with Emulator(answer=lambda question: str(together.wait())) as emulator:
        client = openai_client(emulator)
        threads = [threading.Thread(target=lambda: client.chat.completions.create(**body("openai"))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert emulator.peak("openai") == 4 and emulator.calls()["openai", "sync"] == 4


def test_batch_of_responses_and_batch_of_two_models() -> None:
    with Emulator(answer=upper) as emulator:
        client, claude = openai_client(emulator), anthropic_client(emulator)
        file_id = upload(client, [line(0, url="/v1/responses", body={"model": "another-model", "input": "hi"})])
        made = client.batches.create(input_file_id=file_id, endpoint="/v1/responses", completion_window="24h")
        [row] = lines_openai(client, finish_openai(client, made.id)[-1].output_file_id)
        assert row["response"]["body"]["output"][0]["content"][0]["text"] == "HI"
        mixed = claude.messages.batches.create(
            requests=[{"custom_id": model, "params": body("anthropic", model=model)} for model in ("one", "two")]
        )  # type: ignore[misc]
        finish_anthropic(claude, mixed.id)
        assert {one.result.message.model for one in claude.messages.batches.results(mixed.id)} == {"one", "two"}


def test_lines_are_utf8_as_they_are() -> None:
    with Emulator(answer=lambda question: "smørrebrød 🎲") as emulator:
        _, [row], _ = run_openai(openai_client(emulator), 1)
        assert row["response"]["body"]["choices"][0]["message"]["content"] == "smørrebrød 🎲"
        [result] = run_anthropic(anthropic_client(emulator), 1).values()
        assert result.message.content[0].text == "smørrebrød 🎲"
        assert json.dumps(paid_ids(emulator.ledger())) == json.dumps({custom_id(0): 2})
