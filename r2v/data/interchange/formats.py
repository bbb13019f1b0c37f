"""Formats: the one table of trajectory formats, and the recognition of a record by what it holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from r2v.constraints import shown
from r2v.data.interchange.atif import from_atif, is_atif
from r2v.data.interchange.completion import from_completion, is_completion
from r2v.data.interchange.conversation import Conversation
from r2v.data.interchange.fields import BadRecord
from r2v.data.interchange.harnesses import from_inspect, from_tau_bench, is_inspect, is_tau_bench
from r2v.data.interchange.litellm import from_litellm, is_litellm
from r2v.data.interchange.messages import from_messages, is_messages
from r2v.data.interchange.responses import from_responses, is_responses
from r2v.data.interchange.sessions import Session, from_claude_code, from_codex
from r2v.data.interchange.sharegpt import from_sharegpt, is_sharegpt
from r2v.data.interchange.sweagent import from_sweagent, is_sweagent


def _is_session_of(client: str) -> Callable[[Any], bool]:
    return lambda record: isinstance(record, Session) and record.client == client


FORMATS: dict[str, tuple[Callable[[Any], bool], Callable[[Any], Conversation]]] = {
    "claude-code": (_is_session_of("claude-code"), from_claude_code),
    "codex": (_is_session_of("codex"), from_codex),
    "atif": (is_atif, from_atif),
    "inspect": (is_inspect, from_inspect),
    "litellm": (is_litellm, from_litellm),
    "tau-bench": (is_tau_bench, from_tau_bench),
    "completion": (is_completion, from_completion),
    "sharegpt": (is_sharegpt, from_sharegpt),
    "responses": (is_responses, from_responses),
    "sweagent": (is_sweagent, from_sweagent),
    "messages": (is_messages, from_messages),
}
"""Name -> (does a record look like it, read a record), in the order in which they are tried."""


def recognise(record: Any) -> str:
    """Return the name of a record's format. Raises BadRecord where it looks like none."""
    for name, (looks_like, _) in FORMATS.items():
        if looks_like(record):
            return name
    fields = ", ".join(map(shown, list(record)[:8])) if isinstance(record, dict) else type(record).__name__
    raise BadRecord(f"no trajectory of a known format ({', '.join(FORMATS)}): it has {fields}")
