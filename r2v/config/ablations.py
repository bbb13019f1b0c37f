"""The ablation registry: every ablation by name, as configuration overrides and nothing else.

    registry().rows["no_dpo"].overrides

The rows stand in ablations.yaml, the only list of their names. `r2v.experiments.ablations` says which of them a
configuration can tell anything of, and makes both sides of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from r2v.config.yaml_text import plain, read_file

ALL_ROWS = "all"
"""In `ablations.names`: every row, in the order of the table."""
_FILE = Path(__file__).with_name("ablations.yaml")


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """One row: what is changed, and which method of the changed pipeline is compared with which of the whole. Both play
    the same worlds."""

    name: str
    """As `ablations.names` and the table spell it."""
    description: str
    """What is changed, in a few words."""
    overrides: tuple[str, ...] = ()
    """Of the ablated side."""
    shared: tuple[str, ...] = ()
    """Overrides of both sides."""
    base_method: str = "r2v"
    """Who plays on the base's side."""
    ablated_method: str = "r2v"
    """Who plays on the ablated side."""
    condition: str | None = None
    """What both sides play under; None: noisy, or else the first of `evaluation.conditions`."""


@dataclass(frozen=True, kw_only=True)
class AblationRegistry:
    """Every row, and what is said of several."""

    rows: dict[str, Ablation]
    """By name, in the order of ablations.csv."""
    default: list[str]
    """The rows of a study whose configuration names none."""
    learned_parts: dict[str, tuple[str, int]]
    """Learned part -> the row that tells of it, and whether that adds the part (+1) or takes it away (-1)."""


@cache
def registry() -> AblationRegistry:
    """Return what ablations.yaml says. It is read on first use, for commands that need no configuration."""
    content: dict[str, Any] = plain(read_file(_FILE).value)
    return AblationRegistry(
        rows={name: _row(name, **row) for name, row in content["rows"].items()},
        default=content["default"],
        learned_parts={part: (row, sign) for part, (row, sign) in content["learned_parts"].items()},
    )


def _row(name: str, *, overrides: Sequence[str] = (), shared: Sequence[str] = (), **others: Any) -> Ablation:
    return Ablation(name=name, overrides=tuple(overrides), shared=tuple(shared), **others)
