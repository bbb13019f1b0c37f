"""Renaming: a bijection between the world's names and those that the agent sees.

All methods change only the names in a text, so that a round trip gives the same bytes. A recorded action is in the
world's names and is rewritten with the agent's for a renamed page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from r2v.randomness import Key, uniform

_SHOWN = re.compile(r'(?m)^(?P<before>\s*\[)(?P<id>\w+)(?=\])|(?P<field>"(?:\w+_)?b?id"\s*:\s*")(?P<value>\w+)(?=")')
"""Identifiers on a page: in brackets at the start of an element's line, or in a field id or bid."""
_FIELD = re.compile(r'"(?P<name>\w+)"(?=\s*:)')
_KEPT = ("tool",)
"""Fields that are never renamed: they name the tool of a call."""
SUFFIX = "_v2"


class Renaming(Protocol):
    """A bijection of names."""

    def for_agent(self, text: str) -> str:
        """Return a page or an action with the agent's names."""

    def for_world(self, action: str) -> str:
        """Return the agent's action with the world's names."""


def identifiers(page: str) -> list[str]:
    """Return the identifiers of a page's elements and rows, each once, in the order of the page."""
    return list(dict.fromkeys(match["id"] or match["value"] for match in _SHOWN.finditer(page)))


@dataclass(frozen=True, slots=True)
class Identifiers:
    """Permuted identifiers: `names` is a permutation of some of a page's."""

    names: Mapping[str, str]

    def for_agent(self, text: str) -> str:
        """Return the text with the page's identifiers and values of the fields id and bid."""
        return _at_identifiers(text, self.names)

    def for_world(self, action: str) -> str:
        """Return the call with the world's values of the fields id and bid."""
        return _at_identifiers(action, {new: old for old, new in self.names.items()})


@dataclass(frozen=True, slots=True)
class Fields:
    """Renamed fields of pages and arguments of calls: a share `share` of all names, drawn by `key`. The old and the new
    name are swapped, so a call with the old one reaches the world with an unknown name."""

    key: Key
    share: float

    def name(self, field: str) -> str:
        """Return the new name of a field, its own if it is not renamed."""
        base = field.removesuffix(SUFFIX)
        if base in _KEPT or uniform(*self.key, "field", base) >= self.share:
            return field
        return base if field.endswith(SUFFIX) else field + SUFFIX

    def for_agent(self, text: str) -> str:
        """Return the text with the new field names."""
        return _FIELD.sub(lambda match: f'"{self.name(match["name"])}"', text)

    def for_world(self, action: str) -> str:
        """Return the action with the world's names; swapping is its own inverse."""
        return self.for_agent(action)

    def schema(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the JSON schema of a tool with renamed arguments."""
        renamed = dict(parameters)
        if "properties" in parameters:
            renamed["properties"] = {self.name(name): value for name, value in parameters["properties"].items()}
        if "required" in parameters:
            renamed["required"] = [self.name(name) for name in parameters["required"]]
        return renamed


def renamed_line(line: str, params: Mapping[str, Any]) -> str:
    """Return a line of the world's page with the renamings in one recorded perturbation's `params`."""
    identified, fields = params.get("identifiers"), params.get("fields")
    if isinstance(identified, Mapping):
        line = Identifiers(identified).for_agent(line)
    if isinstance(fields, Mapping):
        line = _FIELD.sub(lambda match: f'"{fields.get(match["name"], match["name"])}"', line)
    return line


def fields_of(page: str, name: Callable[[str], str]) -> dict[str, str]:
    """Return old name -> new name for the renamed fields of a page."""
    return {field: name(field) for field in sorted(set(_FIELD.findall(page))) if name(field) != field}


def _at_identifiers(text: str, names: Mapping[str, str]) -> str:
    def other(match: re.Match[str]) -> str:
        if match["id"] is not None:
            return f"{match['before']}{names.get(match['id'], match['id'])}"
        return f"{match['field']}{names.get(match['value'], match['value'])}"

    return _SHOWN.sub(other, text)
