"""Progress of long work: a bar in a terminal, one updating output in a notebook, a line a minute in a log or a pipe.

    with in_stage("stage 3 of 10"), Progress("cloning", 113) as bar:
        bar.advance(loss=0.7)

Terminal and notebook: `cloning, stage 3 of 10 ━━━━━━ 40 of 113, loss 0.7, 2.1/s, 12 min left`. Elsewhere: `cloning,
stage 3 of 10: done=40 total=113 loss=0.7 rate=2.1/s left=12min`. Spent money replaces the rate. Inside a Slurm job
progress is written to the job's record too (`r2v.storage.record`).

Nothing is drawn between two calls of `advance`, because a drawing thread would disturb forks and event loops.
"""

from __future__ import annotations

import builtins
import os
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path
from typing import Any

from r2v.console import FilteredStream, duration, figures_line, printable, unfiltered
from r2v.log import curve, logger
from r2v.storage import record

_EVERY = 10.0
"""Seconds between two lines of the record; shared disks are slow."""
_EVERY_LINE = 60.0
"""Seconds between two lines outside a terminal, as in a batch job's log."""
_EVERY_DRAWING = 0.25
"""Seconds between two states of a bar."""
_ROWS = 6
"""Bars in a notebook's output; the oldest ended ones are removed first."""
_BAR_WIDTH = 24

_spent: dict[Path, float] = {}


def show_spent(journal: Path, usd: float | None) -> None:
    """Show a provider run's spending with all progress; None: the run has ended."""
    if usd is None:
        _spent.pop(journal, None)
    else:
        _spent[journal] = usd


def _dollars() -> str:
    """Return the total spending in USD, to the millionth, without trailing zeros beyond cents; "" for 0."""
    usd = f"{sum(_spent.values()):.6f}"
    return "" if float(usd) == 0 else usd[:-4] + usd[-4:].rstrip("0")


_stage: ContextVar[tuple[str, NotebookBars | None]] = ContextVar("stage", default=("", None))
"""Such as `stage 9 of 10`, and in a notebook the single output for that stage's bars."""


@contextmanager
def in_stage(text: str) -> Iterator[None]:
    """Label progress within the block by this stage, and show only its spending. A nested stage draws into the outer
    one's output."""
    display = _stage.get()[1] or (NotebookBars() if _kernel() is not None else None)
    token, spent = _stage.set((text, display)), dict(_spent)
    _spent.clear()
    try:
        yield
    finally:
        _spent.clear()
        _spent.update(spent)
        _stage.reset(token)


class Progress:
    """Progress of `total` items, of which `done` are finished. One without a name shows nothing."""

    def __init__(self, label: str, total: int, done: int = 0) -> None:
        self._label, self._total, self._done = label, total, done
        self._figures: dict[str, float] = {}
        self._reported_at = -_EVERY
        self._began = self._shown_at = time.monotonic()
        self._done_before = done
        self._name = ", ".join(filter(None, (printable(label), _stage.get()[0])))
        self._display, self._row = (_display() if label else None), -1
        self._every = _EVERY_LINE if self._display is None else _EVERY_DRAWING

    def advance(self, by: int = 1, **figures: float) -> None:
        """Count `by` more items as done. Figures (a loss, a rate) are shown until they are replaced."""
        self._done += by
        self._figures |= figures
        now = time.monotonic()
        if self._label and now - self._shown_at >= self._every:
            self._shown_at = now
            self._show(now - self._began)
        if now - self._reported_at >= _EVERY:
            self._report()

    def _show(self, seconds: float) -> None:
        if self._display is None:
            logger.info("  " + self.line(seconds))
        else:
            with self._drawing():
                self._display.update(self._row, self._done, self.state(seconds))

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """Fall back to log lines if the terminal is gone."""
        try:
            yield
        except OSError:
            self._display, self._every = None, _EVERY_LINE

    def line(self, seconds: float) -> str:
        """Return the log line after `seconds`: `cloning: done=40 total=113 loss=0.7 left=12min`."""
        values = {"done": self._done, "total": self._total, **self._figures, **self._pace(seconds)}
        shown = (f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}".replace(" ", "") for k, v in values.items())
        return f"{self._name}: {' '.join(shown)}"

    def state(self, seconds: float) -> str:
        """Return the text of the bar after `seconds`: `40 of 113, loss 0.7, 12 min left`."""
        pace = self._pace(seconds)
        usd, rate, left = (pace.get(name, "") for name in ("usd", "rate", "left"))
        parts = f"{self._done} of {self._total}", figures_line(self._figures), usd and f"${usd}", rate
        return ", ".join(filter(None, (*parts, left and f"{left} left")))

    def _pace(self, seconds: float) -> dict[str, str]:
        """Return spending or rate, and the time left, if known."""
        fresh, usd = self._done - self._done_before, _dollars()
        pace = {"usd": usd} if usd else {}
        if fresh > 0 and seconds > 0:
            rate = fresh / seconds
            pace |= {} if usd else {"rate": f"{rate:.0f}/s" if rate >= 10 else f"{rate:.2g}/s"}
            pace |= {"left": duration((self._total - self._done) * seconds / fresh)} if self._done < self._total else {}
        return pace

    def _report(self) -> None:
        if self._label:
            if self._figures:
                stem = f"{self._label}/"
                curve({f"{stem}{name}": value for name, value in {**self._figures, "done": self._done}.items()})
            record.event(self._label, self._done, self._total, self._figures)
        self._reported_at = time.monotonic()

    def __enter__(self) -> Progress:
        self._report()
        if self._display is not None:
            with self._drawing():
                self._row = self._display.add(self._name, self._total, self._done)
        return self

    def __exit__(self, *_: object) -> None:
        self._report()
        if self._display is not None:
            with self._drawing():
                self._display.end(self._row, self._done, self.state(time.monotonic() - self._began))


def _display() -> TerminalBars | NotebookBars | None:
    """Return the display for bars; None for log lines."""
    if _kernel() is not None:
        return _stage.get()[1] or NotebookBars()
    if sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
        return _terminal
    return None


def _kernel() -> Any:
    """Return the shell of this process's notebook kernel; None outside a notebook."""
    shell = getattr(builtins, "get_ipython", lambda: None)()
    return shell if hasattr(shell, "kernel") else None


def _bars(terminal_stdout: bool = False, **options: Any) -> Any:
    """Return rich's bars without automatic refresh. Only stdout of a terminal is redirected."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    def text(field: str) -> TextColumn:
        return TextColumn(field, markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))

    return Progress(
        *(text("  {task.description}"), BarColumn(_BAR_WIDTH), text("{task.fields[state]}")),
        console=Console(highlight=False, markup=False, emoji=False, soft_wrap=True, **options),
        auto_refresh=False,
        transient=True,
        redirect_stdout=terminal_stdout,
    )


class TerminalBars:
    """Bars at the bottom of the terminal, below other output."""

    _drawn: Any = None

    def add(self, name: str, total: int, done: int) -> int:
        """Add a bar and return its row."""
        if self._drawn is None:
            before = sys.stdout, sys.stderr
            self._drawn = _bars(sys.stdout.isatty(), file=unfiltered(sys.stderr), force_terminal=True)
            self._drawn.start()
            self._drawn.console.show_cursor(True)  # a killed process could not show it again
            sys.stdout, sys.stderr = map(_filtered_as, before, (sys.stdout, sys.stderr))
        row: int = self._drawn.add_task(name, total=total, completed=done, state=f"{done} of {total}")
        self._drawn.refresh()
        return row

    def update(self, row: int, done: int, state: str) -> None:
        """Redraw a bar."""
        self._drawn.update(row, completed=done, state=state, refresh=True)

    def end(self, row: int, done: int, state: str) -> None:
        """Remove a bar; after the last one, restore the streams."""
        self._drawn.remove_task(row)
        if not self._drawn.task_ids:
            drawn, self._drawn = self._drawn, None
            try:
                sys.stdout.flush()  # rich holds back an incomplete line
                sys.stderr.flush()
            finally:
                drawn.stop()


_terminal = TerminalBars()


def _filtered_as(before: Any, stream: Any) -> Any:
    """Return the stream, filtered if the one `before` it was."""
    return FilteredStream(stream) if isinstance(before, FilteredStream) and stream is not before else stream


class NotebookBars:
    """Bars of a stage as one output of a notebook's cell, updated in place."""

    def __init__(self) -> None:
        self._ended: list[int] = []
        self._shown_as = ""

    @cached_property
    def _drawn(self) -> Any:
        return _bars(force_jupyter=True)

    def add(self, name: str, total: int, done: int) -> int:
        """Add a bar and return its row."""
        row: int = self._drawn.add_task(name, total=total, completed=done, state=f"{done} of {total}")
        while self._ended and len(self._drawn.task_ids) > _ROWS:
            self._drawn.remove_task(self._ended.pop(0))
        self._publish()
        return row

    def update(self, row: int, done: int, state: str) -> None:
        """Redraw a bar."""
        self._drawn.update(row, completed=done, state=state)
        self._publish()

    def end(self, row: int, done: int, state: str) -> None:
        """Show a bar's final state."""
        self._ended.append(row)
        self.update(row, done, state)

    def _publish(self) -> None:
        """Send the output, or its new state, to the notebook."""
        first, self._shown_as = not self._shown_as, self._shown_as or uuid.uuid4().hex
        data: Mapping[str, str] = self._drawn._repr_mimebundle_((), ())
        _kernel().display_pub.publish(data, transient={"display_id": self._shown_as}, update=not first)
