"""Estimates: the requests that will be sent, and the dollars of their bill if lengths are as assumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from r2v.game import Agent, BatchService, ClaudeHaikuAgent, GameMode, GameService, GPT4oMiniAgent, Rules
from r2v.game.service.estimate import SECONDS_A_REPLY, estimate_job, estimate_lines
from r2v.game.service.jobs import BatchJob
from r2v.game.service.services import run_job
from r2v.llm.providers.prices import rate_of

from ..scripted_models import Scripted, opening


def job(
    root: Path, backend: object, mode: GameMode = GameMode.STANDARD, **rules: bool
) -> tuple[BatchService, BatchJob]:
    game = GameService(agent_service=GPT4oMiniAgent(), rules=Rules(**rules))
    service = BatchService(game, results=root, open_model=opening(backend, backend), on_line=lambda line: None)
    agents = [Agent(id="1", name="A"), Agent(id="2", name="B", service=ClaudeHaikuAgent())]
    agents += [Agent(id=str(k), name=f"C{k}") for k in range(3, 3 if mode is GameMode.STANDARD else 5)]
    return service, service.create_batch_job(agents, mode, 24, 3)


@pytest.mark.parametrize("guess", [False, True])
def test_requests_and_tokens_are_those_of_the_job(guess: bool, tmp_path: Path) -> None:
    """Played by a model whose every message is nine bytes, three tokens, long."""
    backend = Scripted(lambda request: "nine byte")
    service, planned = job(tmp_path, backend, guess=guess)
    estimate = estimate_job(planned, max_concurrent=5, message_tokens=3)
    run_job(service, planned)
    requests = [request for wave in backend.waves for request in wave]
    assert estimate.requests == len(requests) == 24 * (5 if guess else 3)
    sent = sum(len(message.content.encode()) for request in requests for message in request.messages) / 3
    assert sum(model.tokens.input for model in estimate.models) == pytest.approx(sent, rel=0.12 if guess else 0.01)
    assert sum(model.tokens.output for model in estimate.models) == 3 * len(requests)


def test_dollars_hours_and_rounds(tmp_path: Path) -> None:
    planned = job(tmp_path, None)[1]
    estimate = estimate_job(planned, max_concurrent=5)
    mini, haiku = estimate.models
    assert mini.requests == haiku.requests == 36
    rate = rate_of("openai", mini.model)
    assert mini.usd == pytest.approx((mini.tokens.input * rate.input + mini.tokens.output * rate.output) / 1e6)
    assert all(
        model.usd_batch == pytest.approx(model.usd / 2) and model.usd_most > model.usd for model in estimate.models
    )
    assert estimate.direct_hours == pytest.approx(36 / 5 * SECONDS_A_REPLY / 3600)
    assert estimate.rounds == 3
    text = "\n".join(estimate_lines(planned, estimate))
    assert "requests   72 for 24 conversations of 3 messages" in text and "messages of 60 tokens are assumed" in text


def test_remembered_conversations_wait_for_each_other(tmp_path: Path) -> None:
    """Four agents meet in three rounds of a session, with memory."""
    planned = job(tmp_path, None, GameMode.DIVERSITY, memory=True)[1]
    assert estimate_job(planned, max_concurrent=5).rounds == 3 * 3
