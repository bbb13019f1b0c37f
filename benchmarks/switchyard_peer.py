"""Switchyard's stage router (NVIDIA, `nemo-switchyard`) as shipped, deciding at every step of a routing tree.

    python -m benchmarks.switchyard_peer        # install it, into a virtual environment of its own

It runs in a child interpreter that answers JSON lines. Each state is sent as the conversation that a gateway would see
before the step: goal, tool calls and tool results, with `is_error` derived from the page's text
(`r2v.router.page_signals`), and each tool marked as observing or mutating. The small policy's proposal is not sent,
since the router decides before either model is called.

The router compares its confidence that the small model is in trouble with `confidence_threshold`, so the score of a
state is the largest threshold at which it still picks the capable model: its own confidence, 1 where a rule overrides
the threshold, 0 where it picks the efficient model at any threshold. Scores take few values, so the method is a family
over `recent_window`: at each operating point it plays the window that succeeds most on calibration tasks for r2v's
dollars.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.placing import most_success
from benchmarks.routing_tree import Family, Method, Node, Rival, RoutingTree
from r2v.data.action import parse_action
from r2v.errors import EnvironmentFault
from r2v.rollout.actors import StepView
from r2v.router.page_signals import is_error

SWITCHYARD = "switchyard"
RELEASE = "nemo-switchyard==0.3.0"
HOME = Path("outputs/peers/switchyard")
INSTALL = "python -m benchmarks.switchyard_peer"
WINDOWS = (3, 1, 2, 5)
"""Settings of `recent_window`, the default first."""
SEMANTICS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "desk": {
        "observe": ["find", "more", "refresh", "get", "policy", "staff"],
        "mutate": ["close", "assign", "decide", "reply"],
    },
    "babyai": {"observe": ["left", "right", "wait"], "mutate": ["forward", "pick", "drop", "toggle"]},
}
"""Benchmark to the kind of each tool; TextWorld has one tool for everything, which is declared as neither."""

CHILD = """
import asyncio, json, sys
from functools import cache
from switchyard.libsy import Step
from switchyard.libsy.algorithms import stage_router

MODELS = {"efficient": ["small"], "capable": ["large"], "any": ["large", "small"]}

@cache
def router(threshold, window, semantics):
    return stage_router(
        picker="efficient_first",
        confidence_threshold=threshold,
        recent_window=window,
        tool_semantics=json.loads(semantics),
    )

async def decided(messages, threshold, window, semantics):
    request = {"model": "auto", "messages": messages, "stream": False}
    async for step in router(threshold, window, json.dumps(semantics)).run_stream(request, MODELS):
        if isinstance(step, Step.Done):
            outcome = step.outcome
    evidence = outcome.metadata.evidence
    return outcome.selected_model_ids[0] == "large", evidence["source"], evidence.get("confidence")

async def score(messages, window, semantics):
    large, source, confidence = await decided(messages, 0.0, window, semantics)
    if not large:
        return 0.0
    return confidence if source == "dimensions" else 1.0

for line in sys.stdin:
    asked = json.loads(line)
    messages, semantics = asked["messages"], asked["semantics"]
    if "threshold" in asked:
        answer = asyncio.run(decided(messages, asked["threshold"], asked["window"], semantics))[0]
    else:
        answer = [asyncio.run(score(messages, window, semantics)) for window in asked["windows"]]
    print(json.dumps(answer), flush=True)
"""


class Switchyard:
    """The child interpreter, for one benchmark's tools. It ends when its standard input is closed."""

    def __init__(self, python: Path, semantics: Mapping[str, Sequence[str]] | None) -> None:
        self._semantics = semantics
        self._child = subprocess.Popen(
            [str(python), "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def scores(self, messages: Sequence[Mapping[str, Any]]) -> list[float]:
        """Return the score of a state by each of `WINDOWS`."""
        values: list[float] = self._ask({"messages": messages, "windows": WINDOWS})
        return values

    def escalates(self, messages: Sequence[Mapping[str, Any]], threshold: float, window: int) -> bool:
        """Return the router's own decision at a threshold."""
        return bool(self._ask({"messages": messages, "threshold": threshold, "window": window}))

    def close(self) -> None:
        """Stop the child."""
        self._child.communicate()

    def _ask(self, question: Mapping[str, Any]) -> Any:
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(json.dumps({**question, "semantics": self._semantics}) + "\n")
        self._child.stdin.flush()
        if not (line := self._child.stdout.readline()):
            raise EnvironmentFault(f"{SWITCHYARD}: its child interpreter has ended; install it again with `{INSTALL}`")
        return json.loads(line)


def conversation(view: StepView) -> list[dict[str, Any]]:
    """Return a state in Switchyard's typed blocks. An action without a tool call becomes a call of a tool
    `unreadable`."""
    first, *later = view.observations
    messages = [_message("user", {"type": "text", "text": f"{view.goal}\n\n{first}" if first else view.goal})]
    for number, (action, page) in enumerate(zip(view.actions, later, strict=True)):
        parsed, name = parse_action(action), f"call-{number}"
        arguments = parsed.arguments if parsed.action_type else {"text": action}
        call = {"type": "tool_call", "id": name, "name": parsed.action_type or "unreadable", "arguments": arguments}
        content = [{"type": "text", "text": page}]
        result = {"type": "tool_result", "tool_call_id": name, "content": content, "is_error": is_error(page)}
        messages += [_message("assistant", call), _message("tool", result)]
    return messages


def _message(role: str, block: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": [block]}


def switchyard(world: str, home: Path = HOME) -> dict[str, Method]:
    """Return the method by its name; empty, with a printed line, if Switchyard is not installed."""
    python = home / "bin" / "python"
    if not python.exists():
        print(f"{SWITCHYARD}: left out, there is no interpreter at {python}; run `{INSTALL}`", flush=True)
        return {}

    @cache
    def child() -> Switchyard:
        return Switchyard(python, SEMANTICS.get(world))

    async def scores(node: Node) -> list[float]:
        if SWITCHYARD not in node.known:
            assert node.view is not None
            node.known[SWITCHYARD] = child().scores(conversation(node.view))
        values: list[float] = node.known[SWITCHYARD]
        return values

    def member(at: int) -> Rival:
        async def judged(tree: RoutingTree, node: Node) -> tuple[float, float]:
            return (await scores(node))[at], 0.0

        return Rival(name=f"{SWITCHYARD}, recent_window={WINDOWS[at]}", judged=judged, before_proposal=True)

    members = tuple(map(member, range(len(WINDOWS))))
    return {SWITCHYARD: Family(name=SWITCHYARD, members=members, prefer=most_success)}


def main() -> None:
    """Install the release into its own environment."""
    subprocess.run([sys.executable, "-m", "venv", str(HOME)], check=True)
    subprocess.run([str(HOME / "bin" / "pip"), "install", "-q", RELEASE], check=True)
    print(f"{RELEASE} in {HOME}")


if __name__ == "__main__":
    main()
