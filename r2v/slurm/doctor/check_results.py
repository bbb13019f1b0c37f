"""Results of checks of the cluster, each with its remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check. `bad` prevents a pipeline from running, `warn` may."""

    state: Literal["ok", "warn", "bad"]
    what: str
    remedy: str = ""

    @property
    def text(self) -> str:
        """The lines that `r2v doctor` prints, the remedy on its own."""
        return f"{self.state:4}  {self.what}" + (f"\n      -> {self.remedy}" if self.remedy else "")


def ok(what: str) -> Finding:
    """Return a passed check."""
    return Finding(state="ok", what=what)


def warn(what: str, remedy: str) -> Finding:
    """Return a check that may cause problems."""
    return Finding(state="warn", what=what, remedy=remedy)


def bad(what: str, remedy: str) -> Finding:
    """Return a failed check, to be mended first."""
    return Finding(state="bad", what=what, remedy=remedy)
