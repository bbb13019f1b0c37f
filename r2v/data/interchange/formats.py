"""Formats: the one table of trajectory formats, and the recognition of a record by the fields that it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from r2v.constraints import shown
from r2v.data.interchange.atif import from_atif, is_atif
from r2v.data.interchange.conversation import Conversation
from r2v.data.interchange.fields import BadRecord
from r2v.data.interchange.inspect_logs import from_inspect
from r2v.data.interchange.litellm import from_litellm
from r2v.data.interchange.messages import from_messages, is_messages
from r2v.data.interchange.responses import from_responses, is_responses
from r2v.data.interchange.rows import from_completion, from_sharegpt, from_tau_bench
from r2v.data.interchange.served import ServedSession, from_served
from r2v.data.interchange.sessions import SessionLog, from_claude_code, from_codex
from r2v.data.interchange.sweagent import from_sweagent, is_sweagent

Looks = Callable[[Any], bool]


def _has(*names: str) -> Looks:
    return lambda record: isinstance(record, dict) and record.keys() >= set(names)


def _session_of(client: str) -> Looks:
    return lambda record: isinstance(record, SessionLog) and record.client == client


def _is_logged_request(record: Any) -> bool:
    return any(_has("response", name)(record) for name in ("messages", "request", "proxy_server_request"))


FORMATS: dict[str, tuple[Looks, Callable[[Any], Conversation]]] = {
    "claude-code": (_session_of("claude-code"), from_claude_code),
    "codex": (_session_of("codex"), from_codex),
    "served": (lambda record: isinstance(record, ServedSession), from_served),
    "atif": (is_atif, from_atif),
    "inspect": (_has("messages", "epoch", "target"), from_inspect),
    "litellm": (_is_logged_request, from_litellm),
    "tau-bench": (_has("traj"), from_tau_bench),
    "completion": (_has("prompt", "completion"), from_completion),
    "sharegpt": (_has("conversations"), from_sharegpt),
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
