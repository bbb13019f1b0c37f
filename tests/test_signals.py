"""Signals that stop a command: a real terminal that closes under a real command."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from r2v.errors import Interrupted
from r2v.signals import stop_signals

ROOT = Path(__file__).resolve().parents[1]
COLLECT = ("collect", "--overrides", "env.benchmark=chain", "data.num_episodes=100000")


def started(folder: Path, terminal: int | None = None) -> subprocess.Popen[bytes]:
    """A collection at work in a session of its own, with `terminal` as its standard streams."""
    process = subprocess.Popen(
        [sys.executable, "-m", "r2v", *COLLECT],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "R2V_RECORD": str(folder / "job")},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size for path in folder.glob("data/runs/*/trajectories.jsonl")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    return process


def test_a_closed_terminal_ends_a_command_in_order_and_resumable(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = started(tmp_path, theirs)
    os.close(theirs)
    os.close(ours)
    for _ in range(2):  # as the shell does, beside the kernel
        if process.poll() is None:
            process.send_signal(signal.SIGHUP)
    assert process.wait(60) == Interrupted.exit_code
    assert json.loads((tmp_path / "job/error.json").read_text())["kind"] == Interrupted.kind
    manifest = next(tmp_path.glob("data/runs/*/run_manifest.json"))
    assert json.loads(manifest.read_text())["status"] != "done"


def test_what_nohup_has_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert stop_signals() == (signal.SIGINT, signal.SIGTERM)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.SIGHUP in stop_signals()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_background_job_of_a_shell_can_be_stopped(number: signal.Signals, tmp_path: Path) -> None:
    """A shell has SIGINT ignored for what it starts in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = started(tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)
    process.send_signal(number)
    assert process.wait(60) == Interrupted.exit_code
