"""Results of checks of the cluster, each with its remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check. `bad` keeps a pipeline from running, `warn` may."""

    state: Literal["ok", "warn", "bad"]
    what: str
    remedy: str = ""


def ok(what: str) -> Finding:
    """Nothing to do."""
    return Finding(state="ok", what=what)


def warn(what: str, remedy: str) -> Finding:
    """Something to know of."""
    return Finding(state="warn", what=what, remedy=remedy)


def bad(what: str, remedy: str) -> Finding:
    """Something to mend first."""
    return Finding(state="bad", what=what, remedy=remedy)


def lines(findings: Sequence[Finding]) -> list[str]:
    """The lines of `r2v doctor`."""
    return [
        line
        for one in findings
        for line in (f"{one.state:4}  {one.what}", *([f"      -> {one.remedy}"] if one.remedy else []))
    ]
