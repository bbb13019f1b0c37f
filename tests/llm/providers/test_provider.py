"""Limits of batches: cut at the providers' published limits, not at lowered ones."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from r2v.emulator import Emulator, Lifecycle
from r2v.emulator.limits import EmulatedLimits, ProviderLimits
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy
from r2v.llm.providers.openai import OpenAI
from r2v.llm.providers.prices import rate_of
from r2v.llm.providers.provider import BatchLimits, BatchState, CallResult, count_of
from r2v.llm.providers.provider_requests import ProviderRequest, RequestVerdict, ResultLine
from r2v.llm.providers.remote import ProviderRemote
from r2v.llm.types import Request
from r2v.llm.waves import Waves
from r2v.wire.exchange import TokenCounts
from r2v.wire.message import Message
from tests.llm.talk import environment, remote
from tests.trust import drawn


class Prompt:
    """A provider with another's limits whose batches are answered at once; it keeps the contents of each input file."""

    name = "openai"

    def __init__(self, limits: BatchLimits) -> None:
        self.limits = BatchLimits(requests=limits.requests, bytes=limits.bytes, endpoint=limits.endpoint, uploads=False)
        self.files: list[tuple[int, int]] = []
        self._names: list[list[str]] = []

    def request_body(self, request: Request) -> Mapping[str, Any]:
        return {
            "model": "m",
            "max_completion_tokens": request.max_tokens,
            "messages": [{"role": m.role, "content": m.content} for m in request.messages],
        }

    def input_line(self, request: ProviderRequest) -> dict[str, Any]:
        return {"custom_id": request.custom_id, "body": request.body}

    async def create_batch(self, key: str, path: Path, file_id: str | None) -> BatchState:
        with path.open() as file:
            self._names.append([json.loads(line)["custom_id"] for line in file])
        self.files.append((len(self._names[-1]), path.stat().st_size))
        return await self.retrieve_batch(str(len(self._names) - 1))

    async def list_batches(self) -> AsyncIterator[BatchState]:
        for number in reversed(range(len(self._names))):
            yield await self.retrieve_batch(str(number))

    async def retrieve_batch(self, batch_id: str) -> BatchState:
        total = len(self._names[int(batch_id)])
        return BatchState(id=batch_id, state="completed", done=True, total=total, completed=total, files=("all",))

    async def results(self, state: BatchState) -> AsyncIterator[ResultLine]:
        for name in self._names[int(state.id)]:
            yield ResultLine(
                custom_id=name, verdict=RequestVerdict(kind="ok", text="yes", tokens=TokenCounts(fresh=9, output=1))
            )

    async def call(self, request: ProviderRequest) -> CallResult:
        raise AssertionError("batches were asked for")

    async def upload(self, path: Path) -> str:
        raise AssertionError("nothing is uploaded here")

    async def cancel_batch(self, batch_id: str) -> None:
        raise AssertionError("nothing is cancelled here")

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("most", [500, pytest.param(50_000, marks=pytest.mark.whole)])
def test_one_request_too_many_makes_two_batches(most: int, tmp_path: Path) -> None:
    """At the published limit with --whole-suites, else at a hundredth of it."""
    assert OpenAI.limits.requests == 50_000
    provider, count = Prompt(replace(OpenAI.limits, requests=most)), most + 1
    behind = ProviderRemote(
        provider,
        rate_of("openai", "gpt-5.2"),
        tmp_path,
        DispatchPolicy(mode="batch"),
        scope={},
        sync=lambda descriptor: None,
    )
    waves = Waves(max_conversations=count)
    model = waves.model(behind)
    replies = waves.run(
        partial(model.reply, Request(messages=(Message(role="user", content="q"),), key=(n,))) for n in range(count)
    )
    assert {reply.text for reply in replies} == {"yes"}
    assert sorted(size for size, _ in provider.files) == [1, most]


BYTES = [("openai", 195, [5, 190]), ("anthropic", 250, [7, 243])]


@pytest.mark.parametrize(("provider", "count", "sizes"), drawn(BYTES, 1, "published bytes"))
def test_a_batch_is_cut_before_the_published_bytes(
    provider: str, count: int, sizes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 MB a file, 256 MB a call: 195 and 250 questions of a megabyte each, through the official client to an
    emulator that refuses larger ones."""
    megabyte = "x" * 999_000
    with Emulator(folder=tmp_path / "emulator", lifecycle=Lifecycle(polls=1)) as emulator:
        for name, value in environment(emulator).items():
            monkeypatch.setenv(name, value)
        waves = Waves(max_conversations=count)
        model = waves.model(remote(provider, tmp_path / "journal", flush_seconds=5.0, poll_seconds=0.5, timeout=600.0))
        waves.run(
            partial(model.reply, Request(messages=(Message(role="user", content=megabyte),), key=(n,)))
            for n in range(count)
        )
        assert [batch.errors for batch in emulator.batches()] == [[], []]
        assert sorted(batch.total for batch in emulator.batches()) == sizes
        assert sorted(emulator.ledger().paid().values()) == [1] * count


@pytest.mark.parametrize("told", [True, False])
def test_the_queue_of_the_first_tier_is_never_overfilled(
    told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """90,000 prompt tokens of gpt-4o may be queued; 40 questions of about 4,000 take two batches. A provider without a
    known limit finds it by a refusal."""
    prompt, count, tier = "ab " * 4000, 40, 90_000
    limits = EmulatedLimits(openai=ProviderLimits(requests=50_000, bytes=200_000_000, queued_tokens=tier))
    with Emulator(lifecycle=Lifecycle(polls=2), limits=limits) as emulator:
        for name, value in environment(emulator).items():
            monkeypatch.setenv(name, value)
        waves = Waves(max_conversations=count)
        model = waves.model(remote("openai", tmp_path, queued_tokens=tier if told else None))
        waves.run(
            partial(model.reply, Request(messages=(Message(role="user", content=prompt),), key=(n,)))
            for n in range(count)
        )
        batches = emulator.batches()
        assert sorted(emulator.ledger().paid().values()) == [1] * count
    refused = [batch for batch in batches if batch.errors]
    assert {error["code"] for batch in refused for error in batch.errors} <= {"token_limit_exceeded"}
    assert bool(refused) != told and max(batch.total for batch in batches if not batch.errors) <= 22


@pytest.mark.parametrize(("header", "count"), [("0", 0), ("12", 12), ("", None), (None, None), ("many", None)])
def test_a_rate_limit_is_read_from_the_text_of_its_header(header: str | None, count: int | None) -> None:
    assert count_of(header) == count
