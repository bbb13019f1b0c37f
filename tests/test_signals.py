"""Signals that stop a command: a real terminal that closes under a real command."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from r2v.errors import InputError, Interrupted
from r2v.signals import stop_signals, time_limit

ROOT = Path(__file__).resolve().parents[1]
COLLECT = ("collect", "--overrides", "env.benchmark=chain", "data.num_episodes=100000")


def started(folder: Path, terminal: int | None = None) -> subprocess.Popen[bytes]:
    """Start a collection in a session of its own, with `terminal` as its standard streams."""
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
    for _ in range(2):  # as the shell does, besides the kernel
        if process.poll() is None:
            process.send_signal(signal.SIGHUP)
    assert process.wait(60) == Interrupted.exit_code
    assert json.loads((tmp_path / "job/error.json").read_text())["kind"] == Interrupted.kind
    manifest = next(tmp_path.glob("data/runs/*/run_manifest.json"))
    assert json.loads(manifest.read_text())["status"] != "done"


DEAF = """
import ctypes, threading, time
from r2v.signals import interrupt_on_stop
interrupt_on_stop(deaf_seconds=1.0)
mutex = ctypes.create_string_buffer(64)
threading.Thread(target=lambda: (time.sleep(1), print("ready", flush=True)), daemon=True).start()
for _ in range(2):
    ctypes.CDLL(None).pthread_mutex_lock(mutex)  # the second one waits for ever, in C
"""
NOTED = """
import signal, time
from r2v.signals import WATCH, interrupt_on_stop
interrupt_on_stop(deaf_seconds=0.5)
heard = []
signal.signal(signal.SIGTERM, lambda number, frame: heard.append(WATCH.heard()))
print("ready", flush=True)
while not heard:
    time.sleep(0.05)
time.sleep(3)
"""
FORKED = """
import os, signal, time
from r2v.signals import interrupt_on_stop
interrupt_on_stop(deaf_seconds=0.5)
begun, beginning = os.pipe()
child = os.fork()
if not child:
    try:
        os.write(beginning, b"!")
        time.sleep(60)
    finally:
        os._exit(0)
os.read(begun, 1)
os.kill(child, signal.SIGTERM)
os.waitpid(child, 0)
print("ready", flush=True)
time.sleep(3)
"""


ENDLESS = """
import hashlib
from r2v.signals import interrupt_on_stop, time_limit
interrupt_on_stop()
print("ready", flush=True)
with time_limit(0.1, "m: no end"):
    hashlib.pbkdf2_hmac("sha256", b"a", b"b", 2**31 - 1)  # in C, without the interpreter's lock
"""


@pytest.mark.parametrize(
    ("program", "signalled", "code", "word"),
    [
        (DEAF, True, Interrupted.exit_code, "interrupted: stuck in <string>:8 for 1 s after SIGTERM"),
        (NOTED, True, 0, ""),
        (FORKED, False, 0, ""),
        (ENDLESS, False, InputError.exit_code, "r2v: m: no end"),
    ],
    ids=["deaf", "noted", "a child's", "without end"],
)
def test_a_command_that_is_stuck_in_a_librarys_code_is_ended(
    program: str, signalled: bool, code: int, word: str
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    if signalled:
        process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, word in errors) == (code, True)


def count_for_ever() -> None:
    while True:
        with suppress(Exception):
            while True:
                pass


@pytest.mark.parametrize(
    "compute",
    [count_for_ever, lambda: re.fullmatch("(.+)+z", "a" * 60), lambda: 9**9**8],
    ids=["a loop that catches errors", "a regex", "a number"],
)
def test_a_computation_without_end_is_one_line(compute: Callable[[], object]) -> None:
    handler = signal.getsignal(signal.SIGVTALRM)
    with pytest.raises(InputError, match="^m: no end$"), time_limit(0.1, "m: no end"):
        compute()
    assert signal.getsignal(signal.SIGVTALRM) == handler and signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def test_what_nohup_has_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert stop_signals() == (signal.SIGINT, signal.SIGTERM)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.SIGHUP in stop_signals()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_background_job_of_a_shell_can_be_stopped(number: signal.Signals, tmp_path: Path) -> None:
    """A shell makes its background jobs ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = started(tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)
    process.send_signal(number)
    assert process.wait(60) == Interrupted.exit_code
