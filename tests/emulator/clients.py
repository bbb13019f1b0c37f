"""The official clients, pointed at an emulator, and the few calls that tests make with them."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
from anthropic.types.messages import MessageBatch
from openai.types import Batch

from r2v.emulator import Emulator

MODEL = {"openai": "lab-model", "anthropic": "lab-model"}
ENDED = ("completed", "failed", "expired", "cancelled")


def openai_client(emulator: Emulator, **options: Any) -> openai.OpenAI:
    """Return a client with one attempt per call unless `options` say otherwise."""
    return openai.OpenAI(base_url=emulator.openai_url, api_key="test", **{"max_retries": 0} | options)


def anthropic_client(emulator: Emulator, **options: Any) -> anthropic.Anthropic:
    """Return a client with one attempt per call unless `options` say otherwise."""
    return anthropic.Anthropic(base_url=emulator.anthropic_url, api_key="test", **{"max_retries": 0} | options)


def custom_id(i: int) -> str:
    """Return the custom_id of the i-th conversation's first question."""
    return f"run00001-c{i}-0-0"


def body(provider: str, text: str = "hello", **more: Any) -> dict[str, Any]:
    """Return the body of a question."""
    return {"model": MODEL[provider], "messages": [{"role": "user", "content": text}], "max_tokens": 64} | more


def line(i: int, text: str = "hello", **more: Any) -> dict[str, Any]:
    """Return a line of an OpenAI input file."""
    return {
        "custom_id": custom_id(i),
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": body("openai", f"{text} {i}"),
    } | more


def upload(client: openai.OpenAI, lines: list[dict[str, Any]]) -> str:
    """Return the id of an uploaded input file."""
    data = b"".join(json.dumps(one).encode() + b"\n" for one in lines)
    return client.files.create(file=("input.jsonl", data), purpose="batch").id


def create_openai(client: openai.OpenAI, file_id: str, **more: Any) -> Batch:
    """Create a batch of an uploaded file."""
    return client.batches.create(
        input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h", **more
    )


def submit_openai(client: openai.OpenAI, n: int = 4, **more: Any) -> Batch:
    """Create a batch of n questions."""
    return create_openai(client, upload(client, [line(i) for i in range(n)]), **more)


def submit_anthropic(client: anthropic.Anthropic, n: int = 4) -> MessageBatch:
    """Create a batch of n questions."""
    return client.messages.batches.create(
        requests=[{"custom_id": custom_id(i), "params": body("anthropic", f"hello {i}")} for i in range(n)]
    )  # type: ignore[misc]


def finish_openai(client: openai.OpenAI, name: str) -> list[Batch]:
    """Poll a batch until it has ended; return every state."""
    looks = []
    for _ in range(12):
        looks.append(client.batches.retrieve(name))
        if looks[-1].status in ENDED:
            return looks
    raise AssertionError(f"still {looks[-1].status}")


def finish_anthropic(client: anthropic.Anthropic, name: str) -> list[MessageBatch]:
    """Poll a batch until it has ended; return every state."""
    looks = []
    for _ in range(12):
        looks.append(client.messages.batches.retrieve(name))
        if looks[-1].processing_status == "ended":
            return looks
    raise AssertionError(f"still {looks[-1].processing_status}")


def raw_openai(client: openai.OpenAI, file_id: str | None) -> bytes:
    """Return the bytes of a result file."""
    assert file_id
    return client.files.content(file_id).content


def lines_openai(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    """Return the lines of a result file."""
    return [json.loads(one) for one in raw_openai(client, file_id).split(b"\n") if one.strip()]


def run_openai(client: openai.OpenAI, n: int = 4) -> tuple[Batch, list[dict[str, Any]], list[dict[str, Any]]]:
    """Run a batch to its end; return its last state, the output lines, and the error lines."""
    last = finish_openai(client, submit_openai(client, n).id)[-1]
    output = lines_openai(client, last.output_file_id) if last.output_file_id else []
    return last, output, lines_openai(client, last.error_file_id) if last.error_file_id else []


def run_anthropic(client: anthropic.Anthropic, n: int = 4) -> dict[str, Any]:
    """Run a batch to its end; return the result of each custom_id."""
    name = submit_anthropic(client, n).id
    finish_anthropic(client, name)
    return {one.custom_id: one.result for one in client.messages.batches.results(name)}
