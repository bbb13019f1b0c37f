"""Could the recorded action still have been chosen? The validity rule of editing what a stored episode saw.

An argument is *supported* at step t when it occurs in the goal, in an observation up to t, or in an earlier
action. Editing must not take support away: else the label teaches to make identifiers up. What the recorder's
action never had support for (free wording, a constant of the tool's schema) an edit cannot take away.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from r2v.data.episode import Episode
from r2v.perturb.renaming import renamed_line


def lost_support(clean: Episode, edited: Episode) -> list[tuple[int, str]]:
    """(step, argument) of every argument that `clean` supports and `edited`, its twin with the same actions (in other
    names, where its pages have other names), does not. Planted lines support nothing."""
    lost: list[tuple[int, str]] = []
    known = [clean.metadata.goal]
    left = [edited.metadata.goal]
    for before, after in zip(clean.steps, edited.steps, strict=True):
        own = set(before.observation.raw_text.split("\n"))
        for one in after.perturbations:
            own |= {renamed_line(line, one.params) for line in own}
        known.append(before.observation.raw_text)
        left.extend(line for line in after.observation.raw_text.split("\n") if line in own)
        lost.extend(
            (before.step_idx, value)
            for value, told in dict(
                zip(_values(before.action.arguments), _values(after.action.arguments), strict=True)
            ).items()
            if _occurs(value, known) and not _occurs(told, left)
        )
        known.append(before.action.raw_text)
        left.append(after.action.raw_text)
    return lost


def _values(arguments: Any) -> Iterator[str]:
    """The plain values among an action's arguments, as they would be written on a page."""
    if isinstance(arguments, dict):
        for value in arguments.values():
            yield from _values(value)
    elif isinstance(arguments, list):
        for value in arguments:
            yield from _values(value)
    elif arguments is not None and not isinstance(arguments, bool) and str(arguments):
        yield str(arguments)


def _occurs(value: str, texts: list[str]) -> bool:
    """Whether the value stands somewhere as a whole, not as a part of a longer word or number."""
    whole = re.compile(rf"(?<!\w){re.escape(value)}(?!\w)")
    return any(whole.search(text) for text in texts)
