"""Waves that the planner rehearses: the drawn tokens, and the memory that stays."""

from __future__ import annotations

from r2v.memory.measured.rehearsal import FixedShape, rehearse
from r2v.memory.measurement import MeasuredCase
from tests.memory.measuring import SMALL

CODE = "r2v.llm.local.rehearsal:memory"
SHAPE = FixedShape(rows=3, tokens=40, predicted=40)
VOCABULARY = SMALL["vocab_size"]


def peaks(sampling: str) -> dict[str, int]:
    case = MeasuredCase(code=CODE, action="generate", model=SMALL, frozen=True, sampling=sampling)
    run = rehearse(case, SHAPE, 2)
    peak_bytes: dict[str, int] = {}
    for mark, sizes in run.trace.items():
        peak_bytes[mark.action] = max(peak_bytes.get(mark.action, 0), max(sizes) - run.static)
    return peak_bytes


def test_a_wave_reads_chooses_and_adds_a_token() -> None:
    assert list(peaks("greedy")) == ["prompt", "copied", "choose", "token", "last choose"]


def test_a_nucleus_costs_more_than_a_draw_and_that_more_than_the_greedy_choice() -> None:
    greedy, sampled, nucleus = (peaks(sampling)["choose"] for sampling in ("greedy", "sampled", "nucleus"))
    assert greedy <= sampled < nucleus
    assert nucleus - greedy > 2 * SHAPE.rows * VOCABULARY * 8


def test_a_verifier_keeps_the_cache_of_what_it_read() -> None:
    case = MeasuredCase(code=CODE, action="read", model=SMALL, frozen=True)
    run = rehearse(case, SHAPE, 2)
    held = list(run.trace.values())[-1][-1] - run.static
    cache = 2 * 2 * SHAPE.rows * SHAPE.tokens * 2 * 16 * 4
    assert cache < held < 4 * cache, "and what its last operation is made of"
