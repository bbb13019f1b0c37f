"""Results of checks of the cluster, each with its remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check. `bad` keeps a pipeline from running, `warn` may."""

    state: Literal["ok", "warn", "bad"]
    what: str
    remedy: str = ""

    @property
    def text(self) -> str:
        """As `r2v doctor` prints it, the remedy on a line of its own."""
        return f"{self.state:4}  {self.what}" + (f"\n      -> {self.remedy}" if self.remedy else "")


def ok(what: str) -> Finding:
    """Nothing to do."""
    return Finding(state="ok", what=what)


def warn(what: str, remedy: str) -> Finding:
    """Something to know of."""
    return Finding(state="warn", what=what, remedy=remedy)


def bad(what: str, remedy: str) -> Finding:
    """Something to mend first."""
    return Finding(state="bad", what=what, remedy=remedy)
