"""When a batch is looked at."""

from __future__ import annotations

from r2v.llm.providers.dispatch.batch_polling import BatchWaits, pause_of
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy


def test_polls_are_a_twentieth_of_the_wait_apart_between_two_bounds() -> None:
    policy = DispatchPolicy(poll_seconds=30.0)
    assert [pause_of(waited, policy) for waited in (0.0, 600.0, 3600.0, 1e6)] == [30.0, 30.0, 180.0, 600.0]


def test_waits_are_learned_from_the_last_batches() -> None:
    waits = BatchWaits()
    assert (waits.typical, waits.soonest) == (1200.0, 0.0)
    waits.add(100.0)
    waits.add(900.0)
    assert (waits.typical, waits.soonest) == (500.0, 0.0), "two tell nothing of the shortest"
    waits.add(600.0)
    assert (waits.typical, waits.soonest) == (600.0, 50.0)
    for _ in range(21):
        waits.add(10.0)
    assert (waits.typical, waits.soonest) == (10.0, 5.0), "what is long ago is forgotten"
