"""Renaming: what the world calls something and what the agent is told are two names of it, by a bijection.

A page that is shown under a renaming is `told`; an action that was chosen on it is what the agent means, so it is
turned back before it reaches the world (`meant`). A recorded action is turned the other way (`spelled`). All three
work on text and touch nothing but the names, so that turning there and back gives the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from r2v.randomness import Key, uniform

_SHOWN = re.compile(r'(?m)^(?P<before>\s*\[)(?P<id>\w+)(?=\])|(?P<field>"(?:\w+_)?b?id"\s*:\s*")(?P<value>\w+)(?=")')
"""Where an identifier stands on a page: in brackets at the head of an element's line, or in a field id or bid."""
_FIELD = re.compile(r'"(?P<name>\w+)"(?=\s*:)')
_KEPT = ("tool",)
"""Fields that say which call it is."""
SUFFIX = "_v2"


class Renaming(Protocol):
    """Two names of the same things."""

    def told(self, page: str) -> str:
        """The world's text as the agent sees it."""

    def meant(self, action: str) -> str:
        """The agent's action as the world takes it."""

    def spelled(self, action: str) -> str:
        """The world's action as this agent would write it."""


def identifiers(page: str) -> list[str]:
    """The identifiers of a page's elements and rows, each once, in the order they stand."""
    return list(dict.fromkeys(found["id"] or found["value"] for found in _SHOWN.finditer(page)))


@dataclass(frozen=True, slots=True)
class Identifiers:
    """Identifiers that have changed places: `names` is a permutation of some of a page's."""

    names: Mapping[str, str]

    def told(self, page: str) -> str:
        """Every identifier by its new name."""
        return _at_identifiers(page, self.names)

    def meant(self, action: str) -> str:
        """The fields id and bid of a call by the world's names."""
        return _at_identifiers(action, {new: old for old, new in self.names.items()})

    def spelled(self, action: str) -> str:
        """The fields id and bid of a call by the page's names."""
        return _at_identifiers(action, self.names)


@dataclass(frozen=True, slots=True)
class Fields:
    """Fields of pages and arguments of calls that bear another name: `share` of all names, drawn by `key`. The old
    name and the new one change places, so a call that still uses the old one is one the world does not know."""

    key: Key
    share: float

    def name(self, field: str) -> str:
        """The other name of a field, or its own."""
        base = field.removesuffix(SUFFIX)
        if base in _KEPT or uniform(*self.key, "field", base) >= self.share:
            return field
        return base if field.endswith(SUFFIX) else field + SUFFIX

    def told(self, page: str) -> str:
        """Every field by its new name."""
        return _FIELD.sub(lambda found: f'"{self.name(found["name"])}"', page)

    def meant(self, action: str) -> str:
        """Names change places, so there and back are the same."""
        return self.told(action)

    def spelled(self, action: str) -> str:
        """As `meant`."""
        return self.told(action)

    def schema(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON schema of a tool whose arguments are renamed."""
        renamed = dict(parameters)
        if "properties" in parameters:
            renamed["properties"] = {self.name(name): value for name, value in parameters["properties"].items()}
        if "required" in parameters:
            renamed["required"] = [self.name(name) for name in parameters["required"]]
        return renamed


def renamed_line(line: str, params: Mapping[str, Any]) -> str:
    """A line of the world's page as one recorded perturbation shows it: what its `params` say was renamed."""
    identified, fields = params.get("identifiers"), params.get("fields")
    if isinstance(identified, Mapping):
        line = Identifiers(identified).told(line)
    if isinstance(fields, Mapping):
        line = _FIELD.sub(lambda found: f'"{fields.get(found["name"], found["name"])}"', line)
    return line


def fields_of(page: str, name: Callable[[str], str]) -> dict[str, str]:
    """The fields of a page that are shown by another name, and that name."""
    return {field: name(field) for field in sorted(set(_FIELD.findall(page))) if name(field) != field}


def _at_identifiers(text: str, names: Mapping[str, str]) -> str:
    def other(found: re.Match[str]) -> str:
        if found["id"] is not None:
            return f"{found['before']}{names.get(found['id'], found['id'])}"
        return f"{found['field']}{names.get(found['value'], found['value'])}"

    return _SHOWN.sub(other, text)
