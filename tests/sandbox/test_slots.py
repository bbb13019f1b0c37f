"""No more sandboxes at once than processors, over all processes; and none waits for a holder that is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from r2v.sandbox import slots
from r2v.sandbox.slots import slot


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a folder of slots that no other test uses."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    slots._folder.cache_clear()
    yield tmp_path
    slots._folder.cache_clear()


def test_no_more_than_there_are_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda who: {0, 1, 2})
    now, most, guard = 0, 0, threading.Lock()

    def work() -> None:
        nonlocal now, most
        with slot():
            with guard:
                now += 1
                most = max(most, now)
            time.sleep(0.05)
            with guard:
                now -= 1

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 3 and now == 0


def test_other_processes_count_and_one_that_is_killed_frees_its_slots(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "import contextlib, os, sys, tempfile, time\nfrom r2v.sandbox.slots import slot\n"
        f"tempfile.tempdir = {str(fresh)!r}\nos.sched_getaffinity = lambda who: {{0}}\n"
        "with slot():\n    print('has it', flush=True)\n    time.sleep(600)\n"
    )
    monkeypatch.setattr(os, "sched_getaffinity", lambda who: {0})
    holder = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "has it\n"
    entered = threading.Event()

    def work() -> None:
        with slot():
            entered.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert not entered.wait(0.3)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert entered.wait(60)
    thread.join()


def test_a_folder_of_somebody_else_is_not_used_and_that_is_said(
    fresh: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda who: {0})
    with slot():
        pass
    (folder,) = fresh.iterdir()
    folder.chmod(0o777)
    slots._folder.cache_clear()
    with slot(), slot():
        assert "sandboxes not counted, folder not private: folder=" in caplog.text


def test_who_has_waited_long_enough_goes_on_with_a_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda who: {0})
    monkeypatch.setattr(slots, "_PATIENCE", 0.05)
    with slot(), slot():
        assert "sandbox started without a slot: waited=" in caplog.text
