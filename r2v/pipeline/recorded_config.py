"""Recorded configuration: the one that an artifact was made with, and the refusal of another in its place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from r2v.config import Config, identity, load_recorded
from r2v.constraints import shown
from r2v.errors import InputError, UsageError
from r2v.pipeline.inputs import flat
from r2v.storage.integrity import CONFIGURATION

_ELSEWHERE = ("ablations.", "hierarchical.")
"""Sections that no stage behind an evaluation reads."""
_ABSENT = "not set"


def recorded_config(made: Path, what: str, given: Config) -> Config:
    """Return the configuration in the folder of a finished artifact. Raise UsageError where the given one differs in
    what decides results, InputError where another version of R2V wrote it."""
    path = made / CONFIGURATION
    try:
        recorded = load_recorded(path)
    except UsageError as error:
        raise InputError(f"{path}: was written by another version of R2V ({error}); make {made} again") from None
    if differing := _differing(_values(recorded), _values(given)):
        raise UsageError(f"{_listed(differing, what)}; use --config {path}, or make {what} anew with these values")
    return recorded


def _values(config: Config) -> dict[str, Any]:
    return {key: value for key, value in flat(identity(config)).items() if not key.startswith(_ELSEWHERE)}


def _differing(recorded: Mapping[str, Any], given: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(key, recorded value, given value) of every key in which they differ."""
    pairs = ((key, recorded.get(key, _ABSENT), given.get(key, _ABSENT)) for key in sorted(recorded.keys() | given))
    return [(key, before, now) for key, before, now in pairs if before != now]


def _listed(differing: list[tuple[str, Any, Any]], what: str) -> str:
    key, before, now = differing[0]
    others = ", ".join(key for key, _, _ in differing[1:4]) + (", ..." if len(differing) > 4 else "")
    line = f"{key} is {shown(before)} in {what} and {shown(now)} on the command line"
    return f"{line} (others that differ: {others})" if others else line
