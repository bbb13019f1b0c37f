"""Progress of long work: a bar in a terminal, one updating output in a notebook, a line a minute in a log or a pipe.

    with in_stage("stage 3 of 10"), Progress("cloning", 113) as bar:
        bar.advance(loss=0.7)

Terminal and notebook: `cloning, stage 3 of 10 ━━━━━━ 40 of 113, loss 0.7, 2.1/s, 12 min left`. Elsewhere:
`cloning, stage 3 of 10: done=40 total=113 loss=0.7 rate=2.1/s left=12min`. Where money is spent, it takes the place of
the rate. Inside a Slurm job progress goes into the job's record too (`r2v.storage.record`).

Nothing is drawn between two calls of `advance`: a thread that draws would disturb forks and loops.
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
"""Seconds between two lines of the record: readers poll it seldom, and shared disks are slow."""
_EVERY_LINE = 60.0
"""Seconds between two lines of a log that is no terminal, such as that of a batch job."""
_EVERY_DRAWING = 0.25
"""Seconds between two states of a bar."""
_ROWS = 6
"""Bars that a notebook's output holds; older ones that have ended leave it."""
_BAR_WIDTH = 24

_spent: dict[Path, float] = {}


def show_spent(journal: Path, usd: float | None) -> None:
    """Show with all progress how much the run of a provider has spent; None: it has ended."""
    if usd is None:
        _spent.pop(journal, None)
    else:
        _spent[journal] = usd


def _dollars() -> str:
    """Return the sum that is spent, to the millionth of a dollar, without needless zeros; "" if nothing is."""
    usd = f"{sum(_spent.values()):.6f}"
    return "" if float(usd) == 0 else usd[:-4] + usd[-4:].rstrip("0")


_stage: ContextVar[tuple[str, NotebookBars | None]] = ContextVar("stage", default=("", None))
"""Such as `stage 9 of 10`, and, in a notebook, the one output for all the bars of that stage."""


@contextmanager
def in_stage(text: str) -> Iterator[None]:
    """Within the block the progress says that it is this stage's, and shows no money that others have spent. A stage
    inside another draws into its output."""
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
    """How far something is. `done` are finished already. One without a name stays silent."""

    def __init__(self, what: str, total: int, done: int = 0) -> None:
        self._what, self._total, self._done = what, total, done
        self._figures: dict[str, float] = {}
        self._reported_at = -_EVERY
        self._began = self._shown_at = time.monotonic()
        self._done_before = done
        self._name = ", ".join(filter(None, (printable(what), _stage.get()[0])))
        self._display, self._row = (_display() if what else None), -1
        self._every = _EVERY_LINE if self._display is None else _EVERY_DRAWING

    def advance(self, by: int = 1, **figures: float) -> None:
        """Count `by` more as done; figures (a loss, a rate) are kept until they are given anew."""
        self._done += by
        self._figures |= figures
        now = time.monotonic()
        if self._what and now - self._shown_at >= self._every:
            self._shown_at = now
            self._show(now - self._began)
        if now - self._reported_at >= _EVERY:
            self._report()

    def _show(self, seconds: float) -> None:
        if self._display is None:
            logger.info("  %s", self.line(seconds))
        else:
            with self._drawing():
                self._display.update(self._row, self._done, self.state(seconds))

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """Give the bar up if the terminal is gone: the work goes on without."""
        try:
            yield
        except OSError:
            self._display, self._every = None, _EVERY_LINE

    def line(self, seconds: float) -> str:
        """Return a line of a log after so many seconds: `cloning: done=40 total=113 loss=0.7 left=12min`."""
        values = {"done": self._done, "total": self._total, **self._figures, **self._pace(seconds)}
        shown = (f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}".replace(" ", "") for k, v in values.items())
        return f"{self._name}: {' '.join(shown)}"

    def state(self, seconds: float) -> str:
        """Return what stands beside the bar after so many seconds: `40 of 113, loss 0.7, 12 min left`."""
        pace = self._pace(seconds)
        usd, rate, left = (pace.get(name, "") for name in ("usd", "rate", "left"))
        parts = f"{self._done} of {self._total}", figures_line(self._figures), usd and f"${usd}", rate
        return ", ".join(filter(None, (*parts, left and f"{left} left")))

    def _pace(self, seconds: float) -> dict[str, str]:
        """Return money or rate, and the time left, as far as they are known."""
        fresh, usd = self._done - self._done_before, _dollars()
        pace = {"usd": usd} if usd else {}
        if fresh > 0 and seconds > 0:
            rate = fresh / seconds
            pace |= {} if usd else {"rate": f"{rate:.0f}/s" if rate >= 10 else f"{rate:.2g}/s"}
            pace |= {"left": duration((self._total - self._done) * seconds / fresh)} if self._done < self._total else {}
        return pace

    def _report(self) -> None:
        if self._what:
            if self._figures:
                stem = f"{self._what}/"
                curve({f"{stem}{name}": value for name, value in {**self._figures, "done": self._done}.items()})
            record.event(self._what, self._done, self._total, self._figures)
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
    """Return where bars are drawn; None: nowhere, there are lines. The one place that decides."""
    if _kernel() is not None:
        return _stage.get()[1] or NotebookBars()
    if sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
        return _terminal
    return None


def _kernel() -> Any:
    """Return the shell of the notebook's kernel that this process is; None if it is none."""
    shell = getattr(builtins, "get_ipython", lambda: None)()
    return shell if hasattr(shell, "kernel") else None


def _bars(terminal_stdout: bool = False, **options: Any) -> Any:
    """Return rich's bars, which draw when they are told to. What is printed into a pipe stays there."""
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
    """The bars at the bottom of the terminal. What is printed while there are any stands above them."""

    _drawn: Any = None

    def add(self, name: str, total: int, done: int) -> int:
        """Begin a bar; returns its row."""
        if self._drawn is None:
            before = sys.stdout, sys.stderr
            self._drawn = _bars(sys.stdout.isatty(), file=unfiltered(sys.stderr), force_terminal=True)
            self._drawn.start()
            self._drawn.console.show_cursor(True)  # nothing then has to bring it back, however the process dies
            sys.stdout, sys.stderr = map(_filtered_as, before, (sys.stdout, sys.stderr))
        row: int = self._drawn.add_task(name, total=total, completed=done, state=f"{done} of {total}")
        self._drawn.refresh()
        return row

    def update(self, row: int, done: int, state: str) -> None:
        """Draw a bar anew."""
        self._drawn.update(row, completed=done, state=state, refresh=True)

    def end(self, row: int, done: int, state: str) -> None:
        """Take a bar away; with the last one the streams are as before."""
        self._drawn.remove_task(row)
        if not self._drawn.task_ids:
            drawn, self._drawn = self._drawn, None
            try:
                sys.stdout.flush()  # of a line that has only begun, which rich holds
                sys.stderr.flush()
            finally:
                drawn.stop()


_terminal = TerminalBars()


def _filtered_as(before: Any, stream: Any) -> Any:
    """Return the stream, filtered where the one `before` it was."""
    return FilteredStream(stream) if isinstance(before, FilteredStream) and stream is not before else stream


class NotebookBars:
    """The bars of a stage as one output of a notebook's cell, which is updated in place."""

    def __init__(self) -> None:
        self._ended: list[int] = []
        self._shown_as = ""

    @cached_property
    def _drawn(self) -> Any:
        return _bars(force_jupyter=True)

    def add(self, name: str, total: int, done: int) -> int:
        """Begin a bar; returns its row."""
        row: int = self._drawn.add_task(name, total=total, completed=done, state=f"{done} of {total}")
        while self._ended and len(self._drawn.task_ids) > _ROWS:
            self._drawn.remove_task(self._ended.pop(0))
        self._publish()
        return row

    def update(self, row: int, done: int, state: str) -> None:
        """Draw a bar anew."""
        self._drawn.update(row, completed=done, state=state)
        self._publish()

    def end(self, row: int, done: int, state: str) -> None:
        """Leave a bar as it ended."""
        self._ended.append(row)
        self.update(row, done, state)

    def _publish(self) -> None:
        """Send the output, or its new state, to the notebook."""
        first, self._shown_as = not self._shown_as, self._shown_as or uuid.uuid4().hex
        data: Mapping[str, str] = self._drawn._repr_mimebundle_((), ())
        _kernel().display_pub.publish(data, transient={"display_id": self._shown_as}, update=not first)
