"""Progress of a whole job: how many lines, when, and what they say."""

from __future__ import annotations

from r2v.game.service.progress import SECONDS, JobProgress

from ..sample_game import GAME


def test_a_line_for_every_twentieth_and_the_time_that_is_left() -> None:
    lines: list[str] = []
    now = [0.0]
    progress = JobProgress(100, lines.append, clock=lambda: now[0])
    for _ in range(100):
        now[0] += 0.5
        progress.over(GAME[0])
    assert len(lines) == 20
    assert lines[4] == (
        "25 of 100 conversations over (25 %), 0 incomplete, $6.2500 at list price, 0:00:12 so far, about 0:00:38 left"
    )
    assert "left" not in lines[-1] and lines[-1].startswith("100 of 100 conversations over (100 %)")


def test_a_slow_job_is_told_of_every_minute() -> None:
    lines: list[str] = []
    now = [0.0]
    progress = JobProgress(1_000_000, lines.append, done=10, clock=lambda: now[0])
    (incomplete,) = (one for one in GAME if one.incomplete)
    for _ in range(5):
        now[0] += SECONDS
        progress.over(incomplete)
    assert len(lines) == 5 and lines[-1].startswith("15 of 1000000 conversations over (0 %), 5 incomplete")
