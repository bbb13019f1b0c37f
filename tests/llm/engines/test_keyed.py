"""Keyed draws inside an engine equal those of the local decoder, whatever else is in the batch."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from r2v.llm.engines.keyed import Keyed, keyed_draw, read_report
from r2v.llm.sampling import choose
from r2v.randomness import uniform

ROWS, VOCABULARY = 12, 40
REMOVED: list[int] = []


def logits() -> torch.Tensor:
    return torch.randn(ROWS, VOCABULARY, generator=torch.Generator().manual_seed(3)) * 2


def extra(row: int, temperature: float = 0.8, top_p: float = 0.9) -> dict[str, Any]:
    return {"r2v_key": json.dumps([1, f"task-{row}", 0]), "r2v_temperature": temperature, "r2v_top_p": top_p}


def update(
    added: list[tuple[int, Any, list[int]]],
    removed: list[int] = REMOVED,
    moved: list[tuple[int, int, str]] | None = None,
) -> Any:
    return SimpleNamespace(
        removed=removed,
        added=[(row, SimpleNamespace(extra_args=extra_args), None, drawn) for row, extra_args, drawn in added],
        moved=[(source, target, SimpleNamespace(name=how)) for source, target, how in moved or []],
    )


def processor() -> Keyed:
    return Keyed(None, None, False)


def decoded(row: torch.Tensor) -> tuple[int, float, float]:
    """Return the token of greedy decoding, its log-probability and entropy."""
    token = int(row.argmax())
    values, places = row.topk(2)
    figures = read_report(token, dict(zip(places.tolist(), values.tolist(), strict=True)))
    assert figures is not None
    return token, *figures


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_row_draws_what_the_local_decoder_draws_and_reports_exact_figures(temperature: float) -> None:
    engine, drawn = processor(), [[7] * (row % 3) for row in range(ROWS)]
    engine.update_state(update([(row, extra(row, temperature), drawn[row]) for row in range(ROWS)]))
    encoded = engine.apply(logits())
    uniforms = [uniform(1, f"task-{row}", 0, len(drawn[row])) for row in range(ROWS)]
    local = choose(logits(), [temperature] * ROWS, [0.9] * ROWS, uniforms)
    for row in range(ROWS):
        token, logprob, entropy = decoded(encoded[row])
        assert token == int(local.tokens[row])
        assert logprob == pytest.approx(float(local.logprobs[row]), abs=1e-5)
        assert entropy == pytest.approx(float(local.entropies[row]), abs=1e-5)


def test_a_draw_is_the_same_alone_and_in_company() -> None:
    alone, company = processor(), processor()
    alone.update_state(update([(0, extra(5), [])]))
    company.update_state(update([(row, extra(row), []) for row in range(ROWS)]))
    assert decoded(alone.apply(logits()[5:6])[0]) == decoded(company.apply(logits())[5])


def test_rows_are_followed_when_they_move_and_leave() -> None:
    engine = processor()
    engine.update_state(update([(row, extra(row), []) for row in range(4)]))
    engine.update_state(update([(1, extra(9), [])], removed=[1, 3], moved=[(0, 2, "SWAP"), (1, 3, "UNIDIRECTIONAL")]))
    encoded = engine.apply(logits())
    who = {0: 2, 2: 0, 3: 9}  # row -> the request whose draw is there now
    for row, owner in who.items():
        expected = choose(logits()[row : row + 1], [0.8], [0.9], [uniform(1, f"task-{owner}", 0, 0)])
        assert decoded(encoded[row])[0] == int(expected.tokens[0])
    torch.testing.assert_close(encoded[1], logits()[1])  # a row without a draw keeps the model's logits


def test_a_certain_token_is_still_the_greatest() -> None:
    row = torch.full((1, 5), -torch.inf)
    row[0, 3] = 0.0
    engine = processor()
    engine.update_state(update([(0, extra(0), [])]))
    assert decoded(engine.apply(row)[0]) == (3, 0.0, 0.0)


def test_the_next_token_is_drawn_under_the_next_index() -> None:
    engine, drawn = processor(), []  # type: ignore[var-annotated]
    engine.update_state(update([(0, extra(0, top_p=1.0), drawn)]))
    tokens = []
    for _ in range(6):
        tokens.append(decoded(engine.apply(logits()[:1])[0])[0])
        drawn.append(tokens[-1])
        engine.update_state(None)
    expected = [choose(logits()[:1], [0.8], [1.0], [uniform(1, "task-0", 0, i)]).tokens.item() for i in range(6)]
    assert tokens == expected
    assert len(set(tokens)) > 1


@pytest.mark.parametrize("changes", [{"r2v_key": "7"}, {"r2v_key": "[1.5]"}, {"r2v_temperature": -1}, {"r2v_top_p": 0}])
def test_a_malformed_draw_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="r2v_"):
        Keyed.validate_params(SimpleNamespace(extra_args={**extra(0), **changes}))


def test_a_request_without_a_key_is_left_alone() -> None:
    assert keyed_draw(None, []) is None
    assert keyed_draw({"other": 1}, []) is None
    assert not processor().is_argmax_invariant()


def test_answers_of_an_engine_without_the_processor_are_known() -> None:
    assert read_report(3, {3: -0.2, 4: -1.9}) is None
    assert read_report(3, {3: 1.2}) is None
    assert read_report(3, {4: 1.2, 5: -1.0}) is None
