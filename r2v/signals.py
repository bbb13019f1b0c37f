"""Signals: SIGTERM and a terminal that closes end a command as Ctrl-C does, in order and resumable (exit code 75); a
timer ends a computation over another's files that has no end (`time_limit`).

Python runs a signal's handler between two of its own instructions. A command that is in a library's code for good (a
collective that nobody answers, a driver) would be deaf to it, so a thread ends such a process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from r2v.errors import InputError, Interrupted

_GRACE_SECONDS = 1.0
"""Time over a limit after which the handler of its timer is not expected to begin any more."""
_DEAF_SECONDS = 15.0
"""Time that a handler has to begin after SIGTERM, half of what Slurm gives a job before SIGKILL (KillWait)."""


def stop_signals() -> tuple[signal.Signals, ...]:
    """The signals that ask a command to stop: Ctrl-C, SIGTERM, and SIGHUP of a terminal that closes, unless nohup has
    that ignored. A shell has SIGINT ignored for what it starts in the background; that one is taken all the same."""
    hang_up = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hang_up)


class _LimitReached(BaseException):
    """The end of a computation, which no `except Exception` of a library catches."""


@dataclass(frozen=True, kw_only=True)
class _TimeLimit:
    """A limit by two clocks: the CPU time of the main thread, and, as other threads may compute for it, real time."""

    line: str
    cpu_end: float
    end: float

    def passed(self, grace: float = 0.0) -> bool:
        """True if one of the ends was more than `grace` seconds ago."""
        main = time.pthread_getcpuclockid(threading.main_thread().ident or 0)
        return time.clock_gettime(main) >= self.cpu_end + grace or time.monotonic() >= self.end + grace


class DeafnessWatch:
    """A thread that ends this process where no handler of SIGTERM, or of a time limit, begins in time."""

    def __init__(self) -> None:
        self._heard = 0.0
        self._started = False
        self.limit: _TimeLimit | None = None
        """The limit in force."""

    def heard(self) -> None:
        """A handler has begun; every handler of SIGTERM says so first."""
        self._heard = time.monotonic()

    def start(self, seconds: float) -> None:
        """Watch from now on, from the main thread; a handler has `seconds` to begin."""
        if self._started:
            return
        self._started = True
        ours, signals = os.pipe()
        os.set_blocking(signals, False)
        signal.set_wakeup_fd(signals, warn_on_full_buffer=False)  # the kernel's side of a signal, which needs no Python
        os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))  # a child's signals are not ours
        threading.Thread(target=self._watch, args=(ours, seconds), name="deafness watch", daemon=True).start()

    def _watch(self, signals: int, seconds: float) -> None:
        while received := os.read(signals, 64):
            if signal.SIGVTALRM in received and (limit := self.limit) is not None and limit.passed(_GRACE_SECONDS):
                os.write(2, f"r2v: {limit.line}\n".encode())
                os._exit(InputError.exit_code)
            if signal.SIGTERM not in received:
                continue
            sent = time.monotonic() - 1.0  # the handler may have been quicker than this thread
            time.sleep(seconds)
            if self._heard < sent:
                frame = sys._current_frames()[threading.main_thread().ident or 0]
                where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                line = f"r2v: interrupted: stuck in {where} for {seconds:g} s after SIGTERM, so it was ended\n"
                os.write(2, line.encode())
                os._exit(Interrupted.exit_code)


WATCH = DeafnessWatch()


@contextmanager
def time_limit(seconds: float, line: str) -> Iterator[None]:
    """The block in which the main thread may compute for `seconds` of its CPU time, or the process for 20 times as long
    by the clock. Raise InputError with the line after that. Where a library computes on, deaf to that, the process is
    ended with the line and InputError's exit code, once `interrupt_on_stop` was called.

    In other threads, and within another such block, nothing is limited anew.
    """
    if threading.current_thread() is not threading.main_thread() or WATCH.limit is not None:
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        if WATCH.limit is not None and WATCH.limit.passed():
            raise _LimitReached

    WATCH.limit = _TimeLimit(line=line, cpu_end=time.thread_time() + seconds, end=time.monotonic() + 20 * seconds)
    before = signal.signal(signal.SIGVTALRM, interrupt)
    # This timer counts the process's CPU time, so it never interrupts a wait. It comes again: a library may have caught
    # what the first one raised, or other threads have brought it on too early.
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, min(seconds, 1.0))
    try:
        yield
    except _LimitReached:
        raise InputError(line) from None
    finally:
        WATCH.limit = None
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def interrupt_on_stop(deaf_seconds: float = _DEAF_SECONDS) -> None:
    """Have every signal that asks a command to stop raise KeyboardInterrupt, or stop the event loop that runs; a
    process that is deaf to SIGTERM for that long is ended (exit code 75)."""
    terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]

    def interrupt(number: int, frame: FrameType | None) -> None:
        WATCH.heard()
        if number == signal.SIGHUP:
            # Kernel and shell may each send one, and a second interruption would cut an end in order short.
            signal.signal(number, signal.SIG_IGN)
            _leave_closed(terminals)
        signal.raise_signal(signal.SIGINT)

    WATCH.start(deaf_seconds)
    for number in stop_signals():
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else interrupt)


def _leave_closed(terminals: list[int]) -> None:
    """Send to nowhere what would be written to a terminal that is gone: a message on the way out, or Python's last
    flush, would fail there, and with it the exit code."""
    for descriptor in terminals:
        if not os.isatty(descriptor):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, descriptor)
            os.close(nowhere)
