"""Small trajectories in the formats of other tools, made up here after their real files."""

from __future__ import annotations

import json
from typing import Any

TOOL = {
    "type": "function",
    "function": {
        "name": "shell",
        "description": "Run a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}


def called(name: str, arguments: str, call_id: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def chat(number: int = 0, **about: Any) -> dict[str, Any]:
    """Return a thought with two calls at once, arguments that are no JSON, hidden reasoning, and a last user
    message."""
    return {
        "instance_id": f"repo__project-{number}",
        "messages": [
            {"role": "system", "content": "You are a careful engineer."},
            {"role": "user", "content": f"Mend issue {number}."},
            {
                "role": "assistant",
                "content": "I look at both files.",
                "reasoning_content": "Which one is it?",
                "tool_calls": [
                    called("shell", '{"command": "cat one.txt"}', "call_a"),
                    called("shell", '{"command": "cat two.txt"}', "call_b"),
                ],
            },
            {"role": "tool", "tool_call_id": "call_a", "content": "print(1)"},
            {"role": "tool", "tool_call_id": "call_b", "content": "print(\u00e9)"},
            {"role": "assistant", "content": None, "tool_calls": [called("edit", "{not json", "call_c")]},
            {"role": "tool", "tool_call_id": "call_c", "content": "error"},
            {"role": "user", "content": "Try again."},
            {"role": "assistant", "content": None, "tool_calls": [called("pick", '{"tool": "hammer"}', "call_d")]},
            {"role": "tool", "tool_call_id": "call_d", "content": "done"},
            {"role": "assistant", "content": "It is mended."},
            {"role": "user", "content": "Thank you."},
        ],
        "tools": [TOOL],
        "model": "gpt-x",
        **about,
    }


def step(number: int, source: str, message: Any, **more: Any) -> dict[str, Any]:
    return {"step_id": number, "source": source, "message": message, **more}


def atif(**about: Any) -> dict[str, Any]:
    """Return a document of the newest version, with a copied turn, results with and without a call, parts, a
    subagent."""
    shell = {"tool_call_id": "c1", "function_name": "shell", "arguments": {"keystrokes": "ls\n", "duration": 0.1}}
    return {
        "schema_version": "ATIF-v1.7",
        "session_id": "one-session",
        "trajectory_id": "one",
        "agent": {"name": "helper", "version": "2", "model_name": "model-y", "tool_definitions": [TOOL]},
        "steps": [
            step(1, "system", "You help."),
            step(2, "user", "Make hello.txt."),
            step(3, "agent", "It was done before.", is_copied_context=True),
            step(
                4,
                "agent",
                "I list.",
                reasoning_content="hm",
                tool_calls=[shell, {**shell, "tool_call_id": "c2", "arguments": {}}],
                observation={
                    "results": [{"source_call_id": "c1", "content": "a"}, {"source_call_id": "c2", "content": "b"}]
                },
                metrics={"prompt_tokens": 10, "completion_tokens": 5},
            ),
            step(5, "agent", "printf > hello.txt", observation={"results": [{"content": "$ "}]}),
            step(6, "user", "Is it there?"),
            step(7, "agent", "Yes."),
        ],
        "final_metrics": {"total_prompt_tokens": 30, "total_completion_tokens": 9, "total_cost_usd": 0.25},
        **about,
    }


def trajectory(*, calls: bool = False) -> dict[str, Any]:
    """Return a .traj file: text actions with a demonstration before them, or tool calls."""
    acted = {
        "role": "assistant",
        "content": "I list.\n```\nls\n```",
        "thought": "I list.",
        "action": "ls",
        "agent": "main",
    }
    seen = {"role": "user", "content": "one.txt", "agent": "main"}
    if calls:
        acted |= {"content": "I list.", "tool_calls": [called("shell", '{"command": "ls"}', "call_1")]}
        seen = {"role": "tool", "content": "one.txt", "agent": "main", "tool_call_ids": ["call_1"]}
    return {
        "environment": "main",
        "history": [
            {"role": "system", "content": "An interface.", "agent": "main", "message_type": "system_prompt"},
            {"role": "user", "content": "Here is a demonstration: ...", "agent": "main", "is_demo": True},
            {"role": "user", "content": "Mend the colon.", "agent": "main", "message_type": "observation"},
            acted,
            seen,
            {"role": "assistant", "content": "a summary", "agent": "summarizer"},
            {"role": "assistant", "content": "submit", "agent": "main"},
        ],
        "trajectory": [{"action": "ls", "observation": "one.txt", "response": "I list.\n```\nls\n```", "state": "{}"}],
        "info": {
            "exit_status": "submitted",
            "model_stats": {"instance_cost": 1.5, "tokens_sent": 7, "tokens_received": 3},
        },
    }


def lines(*records: Any) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)
