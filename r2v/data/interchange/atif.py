"""ATIF, the Agent Trajectory Interchange Format of Harbor (versions 1.0 to 1.7): one document per run of an agent.

A step is the system's, the user's or the agent's; an agent's step holds its message, its tool calls and their results.
The first user step is the goal. Steps copied from an earlier document, and those without a model's decision
(`llm_call_count` 0), are context and never trained on. Trajectories of subagents are not read. ATIF has no field for
success, so an outcome is claimed only if `extra` has one.
"""

from __future__ import annotations

import json
import re
from typing import Any

import r2v
from r2v.data.episode import Tokens
from r2v.data.interchange.content import normal, text_of
from r2v.data.interchange.conversation import Conversation, words_of
from r2v.data.interchange.fields import BadRecord, amount, claimed_outcome, first_text, require
from r2v.data.tools import chat_tools
from r2v.wire.message import Message, Part, TextPart, ThinkingPart, ToolCall, ToolResult, mapping

ATIF_VERSION = "ATIF-v1.7"
_READ = re.compile(r"ATIF-v1\.[0-7]")


def is_atif(record: Any) -> bool:
    """True if a record has ATIF's schema_version."""
    return isinstance(record, dict) and str(record.get("schema_version", "")).startswith("ATIF-")


def from_atif(record: Any) -> Conversation:
    """Return a document as a conversation. Raise BadRecord for other records."""
    version = require(record, dict, "the record").get("schema_version")
    if not isinstance(version, str) or not _READ.fullmatch(version):
        raise BadRecord(f"schema_version {version!r:.40}; ATIF-v1.0 to {ATIF_VERSION} are read")
    agent = require(record.get("agent"), dict, "agent")
    messages: list[Message] = []
    copied: list[int] = []
    for index, step in enumerate(require(record.get("steps"), list, "steps")):
        where = f"steps[{index}]"
        own = _message_of(require(step, dict, where), where)
        if own and (step.get("is_copied_context") is True or step.get("llm_call_count") == 0):
            copied.append(len(messages))
        messages += [*own, *_results(step.get("observation"), f"{where}: observation")]
    metrics, extra = mapping(record.get("final_metrics")), mapping(record.get("extra"))
    tools = require(agent.get("tool_definitions") or [], list, "agent: tool_definitions")
    return Conversation(
        messages=normal(("steps", message) for message in messages),
        copied=frozenset(copied),
        tools=chat_tools(require(tool, dict, "a tool definition") for tool in tools),
        task_id=first_text(extra, ("task_id", "instance_id")),
        model=first_text(agent, ("model_name",)),
        outcome=claimed_outcome(extra),
        cost=amount(metrics.get("total_cost_usd")),
        tokens=Tokens(
            llm_in=int(amount(metrics.get("total_prompt_tokens"))),
            llm_out=int(amount(metrics.get("total_completion_tokens"))),
        ),
    )


def _message_of(step: dict[str, Any], where: str) -> list[Message]:
    """Return the message of a step, none for a step with an observation only."""
    source, content = step.get("source"), step.get("message")
    text = "" if content is None else text_of(content, f"{where}: message")
    if source == "agent":
        calls = require(step.get("tool_calls") or [], list, f"{where}: tool_calls")
        thought = first_text(step, ("reasoning_content",))
        parts: list[Part] = [ThinkingPart(text=thought)] if thought else []
        parts += [TextPart(text=text)] if text else []
        parts += [_call(require(call, dict, f"{where}: tool call"), where) for call in calls]
        return [Message(role="assistant", content=tuple(parts))] if parts else []
    if source not in ("user", "system"):
        raise BadRecord(f"{where}: source {source!r:.40}; allowed: system, user, agent")
    return [Message(role=source, content=text)] if text else []


def _call(call: dict[str, Any], where: str) -> ToolCall:
    arguments = require(call.get("arguments", {}), dict, f"{where}: arguments")
    return ToolCall(
        name=require(call.get("function_name"), str, f"{where}: function_name"),
        arguments=json.dumps(arguments, ensure_ascii=False),
        id=first_text(call, ("tool_call_id",)) or "",
    )


def _results(observation: Any, where: str) -> list[Message]:
    if observation is None:
        return []
    results = []
    for result in require(require(observation, dict, where).get("results"), list, f"{where}: results"):
        content = require(result, dict, where).get("content")
        text = "" if content is None else text_of(content, f"{where}: content")
        if content is None and result.get("subagent_trajectory_ref"):
            text = "[trajectory of a subagent]"
        part = ToolResult(call_id=first_text(result, ("source_call_id",)) or "", content=text)
        results.append(Message(role="tool", content=(part,)))
    return results


def to_atif(talk: Conversation, about: dict[str, Any]) -> dict[str, Any]:
    """Return a conversation as a document of the newest version, with `about` in its `extra`."""
    agent: dict[str, Any] = {"name": "r2v", "version": r2v.__version__}
    if talk.model is not None:
        agent["model_name"] = talk.model
    if talk.tools:
        agent["tool_definitions"] = list(talk.tools)
    steps: list[dict[str, Any]] = []
    for index, message in enumerate(talk.messages):
        _add_step(steps, message, index in talk.copied)
    outcome = {} if talk.outcome is None else {"success": talk.outcome}
    return {
        "schema_version": ATIF_VERSION,
        "trajectory_id": about["episode_id"],
        "agent": agent,
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, start=1)],
        "final_metrics": {
            "total_prompt_tokens": talk.tokens.llm_in + talk.tokens.slm_in,
            "total_completion_tokens": talk.tokens.llm_out + talk.tokens.slm_out,
            "total_cost_usd": talk.cost,
            "total_steps": len(steps),
        },
        "extra": {"task_id": talk.task_id, **outcome, **about},
    }


def _add_step(steps: list[dict[str, Any]], message: Message, copied: bool) -> None:
    """Add a message: results of an agent's calls to its observation, any other as a step."""
    if message.role == "tool" and steps and steps[-1]["source"] == "agent":
        held = {call["tool_call_id"] for call in steps[-1].get("tool_calls", [])}
        for part in message.parts:
            if isinstance(part, ToolResult):
                named = {"source_call_id": part.call_id} if part.call_id in held else {}
                steps[-1].setdefault("observation", {"results": []})["results"].append({**named, "content": part.text})
        return
    if message.role != "assistant":
        steps.append({"source": "user" if message.role == "tool" else message.role, "message": message.text})
        return
    step: dict[str, Any] = {"source": "agent", "message": words_of(message)}
    thought = {"reasoning_content": message.thought} if message.thought else {}
    mark = {"is_copied_context": True} if copied else {}
    calls = [{"tool_call_id": call.id, "function_name": call.name, "arguments": call.object} for call in message.calls]
    steps.append(step | thought | mark | ({"tool_calls": calls} if calls else {}))
