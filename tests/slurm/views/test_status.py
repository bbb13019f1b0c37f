"""The table and its JSON agree; watching asks Slurm once a minute at most, and ends when nothing is active."""

from __future__ import annotations

import sys

import pytest

from r2v.cli import main as cli
from r2v.slurm.views import status
from r2v.slurm.views.chain_status import statuses
from r2v.slurm.views.sources import gather
from tests.slurm.faked import NEEDS, Faked, ago
from tests.slurm.faked import faked as faked


def clean(faked: Faked) -> None:
    faked.chain()
    for at, job in enumerate(NEEDS):
        faked.done(str(100 + 2 * at), job)
        faked.accounted(str(100 + 2 * at), "COMPLETED")
    faked.answer()


def test_slurm_is_asked_once_a_minute_and_the_records_are_read_between(faked: Faked) -> None:
    faked.chain()
    faked.queued("100", "RUNNING", "None", TimeUsed="1:00", NodeList="g1")
    for number in range(102, 120):
        faked.queued(str(number), reason="Dependency")
    faked.answer()
    now, done = [0.0], [0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        done[0] += 5
        events = [
            {"at": ago(60 - at), "restart": 0, "what": "collect", "done": at, "total": 400} for at in (0, done[0])
        ]
        faked.record("100", start={"job": "collect", "restart": 0, "at": ago(600)}, events=events)

    seen = []
    for text, _ in status.frames(["desk_noisy"], faked.root, clock=lambda: now[0], sleep=sleep):
        seen.append(text)
        if now[0] >= 300:
            break
    assert faked.calls.count("squeue") == 6 and len(seen) == 61
    assert "stage 1 of 10, collect 295/400" in seen[59] and "collect 300/400" in seen[60]
    assert "left" in seen[30] and "Slurm was asked 55 s ago" in seen[59]


def test_it_ends_when_nothing_is_active(
    faked: Faked, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clean(faked)
    monkeypatch.chdir(faked.root)
    assert cli.main(["status", "--watch"]) == 0
    assert "10 done" in capsys.readouterr().out and not sys.stdout.isatty()
    assert cli.main(["status", "--watch", "--json"]) == 2


def test_lines_and_json_say_the_same(faked: Faked) -> None:
    faked.chain()
    faked.queued("100", "RUNNING", "None")
    for number in range(102, 120):
        faked.queued(str(number), reason="Dependency")
    faked.answer()
    (chain,) = statuses(gather(["desk_noisy"], faked.root), faked.root)
    told = status.as_json(chain)
    assert [row["job"] for row in told["jobs"]] == list(NEEDS) and told["exit_code"] == 10
    text = status.lines(chain)
    assert text[0].startswith("desk_noisy: 1 running, 9 waiting")
    for line, row in zip(text[2:], told["jobs"], strict=True):
        assert line.split()[:3] == [row["job"], row["state"], row["id"]]
