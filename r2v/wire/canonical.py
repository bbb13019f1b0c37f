"""Canonical form of a conversation's items, stable while clients move cache marks and rewrite spacing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def canonical(item: Any) -> Any:
    """Return an item without cache marks, ids and spacing of arguments; a single text part becomes its text."""
    if isinstance(item, Mapping):
        fields = {name: canonical(value) for name, value in item.items() if name not in ("cache_control", "id")}
        if isinstance(arguments := fields.get("arguments"), str):
            fields["arguments"] = _parsed(arguments)
        return fields
    if isinstance(item, Sequence) and not isinstance(item, str):
        parts = [canonical(part) for part in item]
        if len(parts) == 1 and isinstance(parts[0], Mapping) and set(parts[0]) == {"type", "text"}:
            return parts[0]["text"]
        return parts
    return item


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
