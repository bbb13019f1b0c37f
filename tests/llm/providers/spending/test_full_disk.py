"""A disk that fills up while a project's ledger, claims and journals are written: whichever row is the first without
room, the process ends with one line, no paid answer is lost, and nothing is paid twice."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from r2v.cli.main import main
from r2v.emulator import Emulator, Lifecycle
from r2v.errors import EnvironmentFault
from r2v.llm.providers.spending.project import ProjectLedger
from tests.llm.talk import environment, play
from tests.trust import drawn

FULL = 200
"""Bytes that a file may have once the disk is full: enough for a witness, which is replaced in place, but not for an
entry of a ledger."""
CAPS = {"max_usd": 1.0, "project_max_usd": 2.0}


def fill_disk() -> None:
    """Let no file of this process grow from now on."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def play_until_full(told: Connection, rows: int, provider: str, folder: Path, plan: dict[str, Any]) -> None:
    """Play, on a disk that is full after so many syncs of the journal; send the final message."""
    synced = 0

    def sync(descriptor: int) -> None:
        nonlocal synced
        os.fsync(descriptor)
        synced += 1
        if synced == rows:
            fill_disk()

    os.environ.update(plan.pop("urls"))
    if rows == 0:
        fill_disk()
    try:
        play(provider, folder, count=3, turns=1, sync=sync, **plan)
        told.send("")
    except EnvironmentFault as fault:
        told.send(str(fault))


def on_a_disk_that_fills(rows: int, provider: str, folder: Path, **plan: Any) -> str:
    """Return the line with which a separate process ends; "" if it had written everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.llm.talk", "openai", "anthropic"])
    ours, theirs = context.Pipe()
    process = context.Process(target=play_until_full, args=(theirs, rows, provider, folder, plan))
    process.start()
    theirs.close()
    line: str = ours.recv()
    process.join()
    return line


@pytest.fixture
def emulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    with Emulator(lifecycle=Lifecycle(polls=1)) as served:
        for name, value in environment(served).items():
            monkeypatch.setenv(name, value)
        yield served


def require_whole(project: Path, line: str) -> None:
    """Require one clear line, and a readable ledger."""
    assert not line or (line.startswith("cannot write ") and "make room" in line and "\n" not in line), line
    ledger = ProjectLedger(project)
    ledger.entries()
    ledger.require_whole()
    assert not list(ledger.folder.glob(".*.tmp")), "no draft is left"


@pytest.mark.parametrize(
    ("provider", "rows"),
    drawn([*(("openai", rows) for rows in range(11)), *(("anthropic", rows) for rows in (2, 4, 6))], 6, "full disk"),
)
def test_what_goes_in_batches_is_paid_once_whichever_row_does_not_fit(
    provider: str, rows: int, emulator: Emulator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another payer of the project continues where the full disk stopped the first, and then the first itself."""
    line = on_a_disk_that_fills(
        rows, provider, tmp_path / "first", **CAPS, project=tmp_path, urls=environment(emulator)
    )
    assert line or rows > 4, "an entry in the ledger, a claim, and a batch's first rows need room"
    require_whole(tmp_path, line)
    for payer in ("second", "first"):
        said = play(provider, tmp_path / payer, count=3, turns=1, project=tmp_path, **CAPS)
        assert [len(turns) for turns in said] == [1] * 3, payer
    bills = emulator.ledger().bills
    assert len(bills) == len({bill.body_sha256 for bill in bills}) == 3
    assert "damaged" not in caplog.text


@pytest.mark.parametrize("rows", drawn([2, 3, 4, 5, 6], 3, "full disk, calls"))
def test_a_call_whose_answer_does_not_fit_is_booked_and_said_to_be(
    rows: int, emulator: Emulator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A direct call's answer exists nowhere else: it is paid again, at most once per lost answer, and never
    silently."""
    plan: dict[str, Any] = {**CAPS, "project": tmp_path, "mode": "concurrent"}
    line = on_a_disk_that_fills(rows, "openai", tmp_path / "first", **plan, urls=environment(emulator))
    require_whole(tmp_path, line)
    said = play("openai", tmp_path / "first", count=3, turns=1, **plan)
    assert [len(turns) for turns in said] == [1] * 3
    journal = [json.loads(row) for row in (tmp_path / "first/journal.jsonl").read_text().splitlines()]
    lost = sum(row["row"] == "lost" for row in journal)
    assert len(emulator.ledger().bills) - 3 <= lost <= 3
    assert not lost or f"may have been billed: calls={lost} " in caplog.text


def test_a_cap_that_cannot_be_written_leaves_the_one_that_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["providers", "ledger", "--max-usd", "5"]) == 0
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    capsys.readouterr()
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        ended = main(["providers", "ledger", "--max-usd", "7"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    (line,) = capsys.readouterr().err.splitlines()
    assert ended == 5 and "cannot write outputs/.replies/project-cap: File too large" in line and "make room" in line
    assert ProjectLedger(tmp_path).cap == 5.0
