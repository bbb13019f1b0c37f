"""Recording a command: its environment, its outcome, and the runs made of its sessions."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from r2v.config import Config, load
from r2v.data.interchange.importing import ImportRequest, import_trajectories
from r2v.data.registry import DataRegistry
from r2v.data.store import TrajectoryStore
from r2v.errors import EmptyResult, UsageError
from r2v.serve.accounts.traffic import TrafficLog, read_traffic
from r2v.serve.record import RecordedCommand, record_command, recorded
from r2v.serve.transport.endpoints import PATHS
from r2v.wire.exchange import WireReply
from r2v.wire.message import Message, TextPart, ThinkingPart, ToolCall
from r2v.wire.stream_facts import WireName
from tests.serve.stub import Seen, Step, Stub, reply, stream, stub
from tests.serve.wires import USAGE, USD, events, whole

AGENT = """
import json, os, sys, urllib.request
def ask(path, body):
    base = os.environ["R2V_SERVE_URL"]
    key = os.environ["OPENAI_API_KEY"]
    assert os.environ["OPENAI_BASE_URL"] == base + "/v1" and os.environ["ANTHROPIC_BASE_URL"] == base
    assert os.environ["ANTHROPIC_API_KEY"] == key and "STUB_API_KEY" not in os.environ
    request = urllib.request.Request(base + path, json.dumps(body).encode(), {"authorization": "Bearer " + key})
    return urllib.request.urlopen(request).read()
"""


def talk(wire: WireName, *, streams: bool = False) -> str:
    """Return the script of an agent that calls a tool, gives its result back and takes the final text."""
    if wire == "messages":
        turns = [
            [{"role": "user", "content": "List the files."}],
            [
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "call_1", "name": "ls", "input": {"at": "."}}],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "a.txt"}]},
            ],
        ]
        tools: Any = [{"name": "ls", "input_schema": {"type": "object"}}]
    elif wire == "responses":
        turns = [
            [{"role": "user", "content": "List the files."}],
            [
                {"type": "function_call", "call_id": "call_1", "name": "ls", "arguments": '{"at": "."}'},
                {"type": "function_call_output", "call_id": "call_1", "output": "a.txt"},
            ],
        ]
        tools = [{"type": "function", "name": "ls", "parameters": {"type": "object"}}]
    else:
        call = {"id": "call_1", "type": "function", "function": {"name": "ls", "arguments": '{"at": "."}'}}
        turns = [
            [{"role": "user", "content": "List the files."}],
            [
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": "a.txt"},
            ],
        ]
        tools = [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}]
    name = "input" if wire == "responses" else "messages"
    more = {"max_tokens": 50} if wire != "responses" else {}
    bodies = [
        {"model": "llm", name: turns[0], "tools": tools},
        {"model": "llm", name: turns[0] + turns[1], "tools": tools},
    ]
    bodies = [body | more | ({"stream": True} if streams else {}) for body in bodies]
    return "".join(f"ask({PATHS[wire]!r}, json.loads({json.dumps(body)!r}))\n" for body in bodies)


def answer(seen: Seen) -> list[Step]:
    wire: WireName = next(name for name, path in PATHS.items() if seen.target.startswith(path))
    first = "call_1" not in seen.body.decode()
    parts: tuple[Any, ...] = (TextPart(text="There is a.txt."),)
    if first:
        parts = (ThinkingPart(text="I look.", opaque="sig"), ToolCall(name="ls", arguments='{"at": "."}', id="call_1"))
    made = WireReply(message=Message(role="assistant", content=parts), usage=USAGE, id="r", model="big-1")
    return stream(events(wire, made)) if seen.json.get("stream") else reply(whole(wire, made))


def config_of(provider: Stub, *overrides: str) -> Config:
    teacher = {
        "provider": "openai",
        "model_name": "big-1",
        "base_url": f"{provider.url}/v1",
        "usd_in": 1.0,
        "usd_out": 4.0,
    }
    return load({"teacher": teacher | {"api_key_env": "STUB_API_KEY"}}, list(overrides))


def run(script: str, provider: Stub, folder: Path, *overrides: str, task: str = "t") -> RecordedCommand:
    words: Sequence[str] = [sys.executable, "-c", AGENT + script]
    return asyncio.run(record_command(words, config_of(provider, *overrides), folder, task=task))


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("wire", PATHS)
def test_a_recorded_session_becomes_an_episode(
    wire: WireName, streams: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stub(answer) as provider:
        done = run(talk(wire, streams=streams) + "sys.exit(0)", provider, tmp_path)
    assert done.success and done.turns == 2 and done.usd == pytest.approx(2 * USD)
    monkeypatch.chdir(tmp_path)
    imported = import_trajectories(ImportRequest(sources=(str(done.folder),)), DataRegistry())
    (episode,) = TrajectoryStore(imported.run.trajectories).iter_episodes()
    assert (
        episode.metadata.task_id == "t"
        and episode.metadata.teacher_model == "big-1"
        and episode.metadata.goal == "List the files."
    )
    assert [step.action.raw_text for step in episode.steps] == ['{"tool":"ls","at":"."}', "There is a.txt."]
    assert episode.extra["imported"]["outcome"] is True and episode.steps[1].observation.raw_text == "a.txt"
    assert not any(step.label for step in episode.steps)
    assert episode.extra["imported"]["usd"] == pytest.approx([USD, USD])


def test_a_run_that_asked_nothing_is_no_trajectory(tmp_path: Path) -> None:
    with stub(answer) as provider:
        done = run("sys.exit(0)", provider, tmp_path)
    with pytest.raises(EmptyResult, match="no trajectory in it"):
        import_trajectories(ImportRequest(sources=(str(done.folder),)), DataRegistry(tmp_path / "data"))


@pytest.mark.parametrize("end,success,code", [
    ("sys.exit(0)", True, 0),
    ("sys.exit(3)", False, 3),
    ('ask("/v1/feedback", {"success": False})', False, 0),
    ('ask("/v1/feedback", {"success": False}); ask("/v1/feedback", {"success": True}); sys.exit(1)', True, 1),
])  # fmt: skip
def test_the_outcome_is_the_exit_code_s_unless_the_command_says_otherwise(
    end: str, success: bool, code: int, tmp_path: Path
) -> None:
    with stub(answer) as provider:
        done = run(end, provider, tmp_path)
        assert (done.success, done.exit_code, done.attempt) == (success, code, 0)
        assert recorded(config_of(provider), tmp_path, task="t") == done
        assert run("sys.exit(0)", provider, tmp_path).attempt == 1


def test_attempts_of_a_task_are_sessions_of_their_own(tmp_path: Path) -> None:
    with stub(answer) as provider:
        for _ in range(2):
            run(talk("chat"), provider, tmp_path)
    rows = [row for row in read_traffic(tmp_path / "data/served/default") if row["kind"] == "turn"]
    assert [row["key"] for row in rows] == ["t/0", "t/0", "t/1", "t/1"]
    assert rows[0]["session"] == rows[1]["session"] != rows[2]["session"] == rows[3]["session"]


def test_a_killed_attempt_is_an_attempt(tmp_path: Path) -> None:
    with stub(answer) as provider:
        assert run("", provider, tmp_path).attempt == 0
        path = tmp_path / "data/served/default/traffic.jsonl"
        log = TrafficLog(path.parent)
        list(log.open())
        log.append({"kind": "turn", "key": "t/1", "session": "s", "by": "x", "conversation": "", "whole": False})
        log.close()
        assert run("", provider, tmp_path).attempt == 2 and run("", provider, tmp_path, task="t/1").attempt == 0
        done = recorded(config_of(provider), tmp_path, task="t")
    assert done is not None and (done.attempt, done.turns) == (2, 0)


def test_no_command_and_no_key_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stub(answer) as provider:
        with pytest.raises(UsageError, match="no-such-program: no such command"):
            asyncio.run(record_command(["no-such-program"], config_of(provider), tmp_path, task="t"))
        monkeypatch.delenv("STUB_API_KEY")
        with pytest.raises(UsageError, match="STUB_API_KEY is not set"):
            run("", provider, tmp_path)
