"""Watching: `r2v status --watch`, the status again and again until nothing is active.

    for frame in frames(["desk_noisy"], Path()):
        print(frame.text)

The jobs' own records are files, and are read often; Slurm is asked once a minute at most, whoever watches how long: its
last answer stands until the next one, and a frame says how old it is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from r2v.console import unfiltered
from r2v.slurm.views import settle, status, status_text
from r2v.slurm.views.status import StatusInputs

ASK_EVERY = 60.0
"""Seconds between two questions to Slurm."""
LOOK_EVERY = 5.0
"""Seconds between two looks at the files, where somebody sits before a terminal."""

UNDER_WAY = 10
"""The exit code of a chain of which something is active."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What there is to see at one time."""

    text: str
    exit_code: int
    """As `r2v status` would end with."""
    asked: bool
    """Whether Slurm was asked for it."""


def frames(
    wanted: Sequence[str],
    root: Path = Path(),
    *,
    every: float = LOOK_EVERY,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Frame]:
    """A frame every so many seconds, the last one when no job is active any more."""
    inputs, asked_at = settle.settled_inputs(wanted, root), clock()
    while True:
        now = clock()
        if due := now - asked_at >= ASK_EVERY:
            inputs, asked_at = settle.settled_inputs(wanted, root), now
        fresh = inputs if due else _read_again(inputs, root)
        found = status.statuses(fresh, root)
        age = f"  Slurm was asked {now - asked_at:.0f} s ago, and is asked again every {ASK_EVERY:.0f} s"
        text = "\n".join("\n".join(status_text.lines(chain)) for chain in found)
        code = status.overall(chain.exit_code for chain in found)
        yield Frame(text=f"{text}\n{age}", exit_code=code, asked=due)
        if code != UNDER_WAY:
            return
        sleep(every)


def show(wanted: Sequence[str]) -> int:
    """Print the frames: on a terminal each in the place of the one before, elsewhere one a minute; returns the exit
    code of the last."""
    terminal, code = sys.stdout.isatty(), 0
    for frame in frames(wanted, every=LOOK_EVERY if terminal else ASK_EVERY):
        if terminal:
            print("\033[H\033[J", end="", file=unfiltered(sys.stdout))
        print(frame.text, flush=True)
        code = frame.exit_code
    return code


def _read_again(inputs: StatusInputs, root: Path) -> StatusInputs:
    """The same answer of Slurm beside the files as they are now."""
    read = {name: status.files(name, root) for name in inputs.records}
    return replace(
        inputs,
        chains={name: read[name][0] for name in inputs.chains},
        owners={name: read[name][0] for name in inputs.owners},
        records={name: records for name, (_, records) in read.items()},
    )
