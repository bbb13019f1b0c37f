"""Signals: SIGTERM and a closing terminal end a command like Ctrl-C, orderly and resumable (exit code 75); a timer ends
computations on untrusted files that may not terminate (`time_limit`).

Python runs a signal's handler between two of its own instructions. A command that hangs in a library's code (an
unanswered collective, a driver) never runs it, so a thread ends such a process. A library that hangs within Python's
lock stops that thread too; SIGKILL alone ends it, which Slurm sends 30 seconds later and `timeout -k` can.
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
"""Time over a limit after which the handler of its timer counts as blocked."""
_DEAF_SECONDS = 15.0
"""Limit on the start of SIGTERM's handler: half of Slurm's delay before SIGKILL (KillWait)."""


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that request a stop: SIGINT, SIGTERM, and SIGHUP of a closing terminal unless nohup ignores
    it. SIGINT is handled even if a shell ignores it for background commands."""
    hang_up = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hang_up)


class _LimitReached(BaseException):
    """End of a computation; a BaseException, so that no `except Exception` of a library catches it."""


@dataclass(frozen=True, kw_only=True)
class _TimeLimit:
    """Limit by two clocks: CPU time of the main thread, and real time, because other threads may compute for it."""

    line: str
    cpu_end: float
    end: float

    def passed(self, grace: float = 0.0) -> bool:
        """True if one of the limits was passed more than `grace` seconds ago."""
        main = time.pthread_getcpuclockid(threading.main_thread().ident or 0)
        return time.clock_gettime(main) >= self.cpu_end + grace or time.monotonic() >= self.end + grace


class DeafnessWatch:
    """Thread that ends this process if the handler of SIGTERM or of a time limit does not start in time."""

    def __init__(self) -> None:
        self._heard = 0.0
        self._started = False
        self.limit: _TimeLimit | None = None
        """Active limit."""

    def heard(self) -> None:
        """Report the start of a handler; every handler of SIGTERM must call it first."""
        self._heard = time.monotonic()

    def start(self, seconds: float) -> None:
        """Start the watch, from the main thread. `seconds`: limit on the start of a handler."""
        if self._started:
            return
        self._started = True
        ours, signals = os.pipe()
        os.set_blocking(signals, False)
        signal.set_wakeup_fd(
            signals, warn_on_full_buffer=False
        )  # written in C on a signal, even if no Python code runs
        os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))  # a child's signals are not ours
        threading.Thread(target=self._watch, args=(ours, seconds), name="deafness watch", daemon=True).start()

    def _watch(self, signals: int, seconds: float) -> None:
        while received := os.read(signals, 64):
            if signal.SIGVTALRM in received and (limit := self.limit) is not None and limit.passed(_GRACE_SECONDS):
                os.write(2, f"r2v: {limit.line}\n".encode())
                os._exit(InputError.exit_code)
            if signal.SIGTERM not in received:
                continue
            sent = time.monotonic() - 1.0  # the handler may have run before this thread
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
    """Limit the block to `seconds` of the main thread's CPU time, and to 20 times as long by the clock. Raises
    InputError with the line after that. If a library blocks the handler, the process ends with the line and
    InputError's exit code, provided that `interrupt_on_stop` was called.

    It has no effect in other threads and within another such block.
    """
    if threading.current_thread() is not threading.main_thread() or WATCH.limit is not None:
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        if WATCH.limit is not None and WATCH.limit.passed():
            raise _LimitReached

    WATCH.limit = _TimeLimit(line=line, cpu_end=time.thread_time() + seconds, end=time.monotonic() + 20 * seconds)
    before = signal.signal(signal.SIGVTALRM, interrupt)
    # This timer counts the process's CPU time, so it never interrupts a wait. It repeats, because a library may have
    # caught the first exception, or other threads have triggered it too early.
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
    """Make every signal that requests a stop raise KeyboardInterrupt, or stop the running event loop. A process whose
    handler of SIGTERM does not start within `deaf_seconds` is ended (exit code 75)."""
    terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]

    def interrupt(number: int, frame: FrameType | None) -> None:
        WATCH.heard()
        if number == signal.SIGHUP:
            # Kernel and shell may each send one, and a second interruption would cut an orderly end short.
            signal.signal(number, signal.SIG_IGN)
            _leave_closed(terminals)
        signal.raise_signal(signal.SIGINT)

    WATCH.start(deaf_seconds)
    for number in stop_signals():
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else interrupt)


def _leave_closed(terminals: list[int]) -> None:
    """Redirect output for closed terminals to /dev/null: a failed message or last flush of Python would change the exit
    code."""
    for descriptor in terminals:
        if not os.isatty(descriptor):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, descriptor)
            os.close(nowhere)
