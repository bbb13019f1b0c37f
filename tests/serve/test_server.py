"""The server in front of the official SDKs: whole sessions at the desk, with tools, streams and thoughts.

Each session is a task of the desk, played by an ordinary loop over an SDK, and ends in the desk's outcome. The LLM is
the desk's expert behind the emulator, which refuses what the providers refuse and counts their caches.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from r2v.config import load
from r2v.emulator import Emulator
from r2v.emulator.ledger import Bill
from r2v.envs.base import Task
from r2v.envs.desk import Desk
from r2v.serve.accounts.traffic import read_traffic
from r2v.serve.server import listening
from r2v.serve.transport.endpoints import PATHS
from r2v.wire.stream_facts import WireName
from tests.serve.stub import in_thread

SESSIONS = 20
MODELS: dict[WireName, tuple[str, str]] = {
    "chat": ("openai", "gpt-5-nano"),
    "responses": ("openai", "gpt-6-luna"),
    "messages": ("anthropic", "claude-sonnet-5-5"),
}
RULES = "You work at a desk. Call one tool in each turn. " + "Read each page to its end before you act. " * 120
DESK = Desk()


# One turn over an SDK: (url, key, newest page, call that it answers, history) -> (tool, arguments, id of the call)


def chat(url: str, key: str, page: str, call: str | None, items: list[Any]) -> tuple[str, dict[str, Any], str]:
    client = openai.OpenAI(base_url=url, api_key=key, max_retries=0)
    items.append({"role": "user", "content": page} if call is None else _tool_message(call, page))
    functions = [{"type": "function", "function": _spec(tool, "parameters")} for tool in DESK.make().tool_specs()]
    asked: Any = {"model": MODELS["chat"][1], "messages": [{"role": "system", "content": RULES}, *items]}
    with client.chat.completions.stream(**asked, tools=functions, stream_options={"include_usage": True}) as stream:
        said = stream.get_final_completion().choices[0].message
    assert said.tool_calls
    items.append(said.model_dump(exclude_none=True, exclude={"parsed"}))
    for one in items[-1]["tool_calls"]:
        one["function"].pop("parsed_arguments", None)
    (made,) = said.tool_calls
    return made.function.name, json.loads(made.function.arguments), made.id


def _tool_message(call: str, page: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": page}


def responses(url: str, key: str, page: str, call: str | None, items: list[Any]) -> tuple[str, dict[str, Any], str]:
    client = openai.OpenAI(base_url=url, api_key=key, max_retries=0)
    result = {"type": "function_call_output", "call_id": call, "output": page}
    items.append({"role": "user", "content": page} if call is None else result)
    functions: Any = [{"type": "function", "strict": False, **_spec(t, "parameters")} for t in DESK.make().tool_specs()]
    asked: Any = {"model": MODELS["responses"][1], "instructions": RULES, "input": items, "tools": functions}
    kept: Any = {"store": False, "include": ["reasoning.encrypted_content"]}
    with client.responses.stream(**asked, **kept) as stream:
        said = stream.get_final_response().output
    items += [item.model_dump(exclude_none=True, exclude={"status", "parsed_arguments"}) for item in said]
    (made,) = [item for item in said if item.type == "function_call"]
    assert any(item.type == "reasoning" for item in said)
    return made.name, json.loads(made.arguments), made.call_id


def messages(url: str, key: str, page: str, call: str | None, items: list[Any]) -> tuple[str, dict[str, Any], str]:
    client = anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)
    result = {"type": "tool_result", "tool_use_id": call, "content": page}
    items.append({"role": "user", "content": [{"type": "text", "text": page} if call is None else result]})
    tools: Any = [_spec(tool, "input_schema") for tool in DESK.make().tool_specs()]
    for message in items:
        for block in message["content"]:
            block.pop("cache_control", None)
    items[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
    system: Any = [{"type": "text", "text": RULES, "cache_control": {"type": "ephemeral"}}]
    asked: Any = {"model": MODELS["messages"][1], "max_tokens": 3000, "system": system, "messages": items}
    with client.messages.stream(**asked, tools=tools, thinking={"type": "adaptive"}) as stream:
        said = stream.get_final_message().content
    assert any(block.type == "thinking" for block in said)
    items.append({"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in said]})
    (made,) = [block for block in said if block.type == "tool_use"]
    return made.name, dict(made.input), made.id


TURNS: dict[WireName, Any] = {"chat": chat, "responses": responses, "messages": messages}


def _spec(tool: Any, schema: str) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, schema: tool.parameters}


def session(turn: Any, url: str, key: str, task: Task) -> bool:
    """Play a task; return True if the desk counts it as done."""
    desk = DESK.make()
    page, _ = desk.reset(seed=0, task=task)
    page, call, items, reward = f"{task.goal}\n\n{page}", None, list[Any](), 0.0
    for _ in range(30):
        name, arguments, call = turn(url, key, page, call, items)
        page, reward, ended, cut, _ = desk.step(json.dumps({"tool": name, **arguments}))
        if ended or cut:
            break
    return reward > 0


@pytest.mark.parametrize("wire", PATHS)
def test_sdk_sessions_end_as_without_the_server(
    wire: WireName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outcomes, bytes and cache hits of the provider are those of direct sessions, and the books equal its bill."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
    provider, model = MODELS[wire]
    tasks = list(DESK.tasks())[:SESSIONS]
    with Emulator(answer="desk") as emulator:
        url = emulator.anthropic_url if provider == "anthropic" else emulator.openai_url
        direct = [session(TURNS[wire], url, "sk-test", task) for task in tasks]
        expected = emulator.ledger().bills
    with Emulator(answer="desk") as emulator:
        url = emulator.anthropic_url if provider == "anthropic" else emulator.openai_url
        config = load({"teacher": {"provider": provider, "model_name": model, "base_url": url}, "serve": {"port": 0}})

        async def main(ready: Any, stop: Any) -> None:
            async with listening(config, tmp_path, record=True) as place:
                ready(place)
                await stop.wait()

        with in_thread(main) as place:
            key = place.keys_file.read_text().split()[1]
            base = place.url if provider == "anthropic" else f"{place.url}/v1"
            served = [session(TURNS[wire], base, key, task) for task in tasks]
        bills = emulator.ledger().bills
    assert served == direct and sum(served) >= 0.8 * SESSIONS
    assert [bill.body_sha256 for bill in bills] == [bill.body_sha256 for bill in expected]
    assert abs(_hits(bills) - _hits(expected)) < 0.01 < _hits(bills)
    rows = [row for row in read_traffic(place.folder) if row["kind"] == "turn"]
    assert len({row["session"] for row in rows}) == SESSIONS and all(row["whole"] for row in rows)
    assert sum(sum(row["tokens"].values()) for row in rows) == sum(bill.tokens_in + bill.tokens_out for bill in bills)


def _hits(bills: tuple[Bill, ...]) -> float:
    return sum(bill.cached_in for bill in bills) / sum(bill.tokens_in for bill in bills)
