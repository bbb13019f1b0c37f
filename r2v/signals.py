"""Signals: SIGTERM and a terminal that closes end a command as Ctrl-C does, in order and resumable (exit code 75)."""

from __future__ import annotations

import os
import signal
from types import FrameType


def stop_signals() -> tuple[signal.Signals, ...]:
    """The signals that ask a command to stop: Ctrl-C, SIGTERM, and SIGHUP of a terminal that closes, unless nohup has
    that ignored. A shell has SIGINT ignored for what it starts in the background; that one is taken all the same."""
    hang_up = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hang_up)


def interrupt_on_stop() -> None:
    """Have every signal that asks a command to stop raise KeyboardInterrupt, or stop the event loop that runs."""
    terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]

    def interrupt(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            # Kernel and shell may each send one, and a second interruption would cut an end in order short.
            signal.signal(number, signal.SIG_IGN)
            _leave_closed(terminals)
        signal.raise_signal(signal.SIGINT)

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
