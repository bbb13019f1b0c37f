"""Sessions: by the name that a client gives, else by its conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from r2v.serve.sessions import Sessions, declared, prefix
from r2v.wire.stream_facts import WireName

ID = "0f3c9a12-7b1e-4c55-9d7e-3f2a1b0c9d8e"
FORMS: list[tuple[list[tuple[bytes, bytes]], dict[str, Any]]] = [
    ([(b"x-claude-code-session-id", ID.encode())], {}),
    ([], {"metadata": {"user_id": json.dumps({"device_id": "d", "account_uuid": "", "session_id": ID})}}),
    ([], {"metadata": {"user_id": f"user_abc_account__session_{ID}"}}),
    ([(b"session-id", ID.encode())], {}),
    ([(b"session_id", ID.encode())], {}),
    ([(b"X-Session-Id", ID.encode())], {}),
    ([], {"prompt_cache_key": ID}),
]


def test_one_id_in_every_form_is_one_session() -> None:
    sessions = Sessions()
    found = [sessions.find(headers, values, "messages", key="k") for headers, values in FORMS]
    assert found[0].name == ID and all(session is found[0] for session in found)


@pytest.mark.parametrize(
    "user", ["{broken", 7, None, [], "x" * 1_000_000, '{"session_id": 7}', "{" * 5000, "", "user_abc"]
)
def test_a_broken_name_is_no_session_and_no_crash(user: Any) -> None:
    assert declared([(b"session-id", b"")], {"metadata": {"user_id": user}})[0] == ""
    assert declared([], {"metadata": user, "prompt_cache_key": user if not isinstance(user, str) else 3})[0] == ""
    assert declared([(b"session-id", b"x" * 500)], {})[0] == ""


def chat_turns(arguments: str = '{"a": 1}', mark: bool = False) -> list[dict[str, Any]]:
    text: Any = "Do it."
    if mark:
        text = [{"type": "text", "text": "Do it.", "cache_control": {"type": "ephemeral"}}]
    call = {"id": "call_1", "type": "function", "function": {"name": "ls", "arguments": arguments}}
    return [
        {"role": "user", "content": text},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "a.txt"},
    ]


def test_a_conversation_is_recognised_although_its_client_rewrites_it() -> None:
    """Cache marks move and turn text into a list; arguments are serialized again."""
    sessions = Sessions()
    first = sessions.find([], {"messages": chat_turns(mark=True)[:1]}, "chat", key="k")
    second = sessions.find([], {"messages": chat_turns()}, "chat", key="k")
    later = [*chat_turns('{"a":1}'), {"role": "assistant", "content": "Done."}, {"role": "user", "content": "More."}]
    assert first is second is sessions.find([], {"messages": later}, "chat", key="k")


def test_a_client_that_drops_replies_is_recognised_too() -> None:
    sessions, first = Sessions(), {"messages": [{"role": "user", "content": "Do it."}]}
    later = {"messages": [*first["messages"], {"role": "user", "content": "Tool call error."}]}
    assert sessions.find([], first, "chat", key="k") is sessions.find([], later, "chat", key="k")


def test_the_same_first_request_again_is_a_retry_until_it_was_answered() -> None:
    sessions, values = Sessions(), {"messages": chat_turns()[:1]}
    first = sessions.find([], values, "chat", key="k")
    assert sessions.find([], values, "chat", key="k") is first
    sessions.answered(prefix(values, "chat"), key="k")
    assert sessions.find([], values, "chat", key="another") is not first
    second = sessions.find([], values, "chat", key="k")
    assert second is not first
    assert sessions.find([], {"messages": chat_turns()}, "chat", key="k") is second


@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
def test_other_conversations_are_other_sessions(wire: WireName) -> None:
    key = "input" if wire == "responses" else "messages"
    sessions = Sessions()
    names = {
        sessions.find([], {key: [{"role": "user", "content": text}], "system": system}, wire, key="k").name
        for text in ("a", "b")
        for system in ("s", "t")
    }
    assert len(names) == 4


def test_a_restart_takes_sessions_over() -> None:
    before, after = Sessions(), Sessions()
    values = {"messages": chat_turns()[:1]}
    session = before.find([], values, "chat", key="k")
    row = {"session": session.name, "by": session.source, "conversation": prefix(values, "chat"), "key": "k"}
    after.restore({**row, "whole": True, "source": "small", "said": "abc", "decision": {"source": "small"}})
    assert after.find([], {"messages": chat_turns()}, "chat", key="k").name == session.name
    taken = after.get(session.name)
    assert taken is not None and taken.turns == 1 and taken.small_turns == {"abc"}
    assert taken.decisions == {prefix(values, "chat"): "small"}
