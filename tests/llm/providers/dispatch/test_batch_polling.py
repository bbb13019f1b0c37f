"""The times at which a batch is polled."""

from __future__ import annotations

from r2v.llm.providers.dispatch.batch_polling import BatchWaits, pause_of
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy


def test_polls_are_a_two_hundredth_of_the_wait_apart_and_rarer_the_more_batches_share_the_rate_limit() -> None:
    policy = DispatchPolicy(poll_seconds=10.0)
    assert [pause_of(waited, 1, policy) for waited in (0.0, 2000.0, 3600.0, 86_400.0)] == [10.0, 10.0, 18.0, 432.0]
    assert [pause_of(0.0, count, policy) for count in (5, 40)] == [10.0, 80.0], "30 polls a minute together"
    assert pause_of(86_400.0, 40, policy) == 432.0


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
