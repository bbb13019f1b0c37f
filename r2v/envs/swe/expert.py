"""Stand-in teacher of SWE-bench, which knows the right patch.

It reads the lines around the change, applies it, views the difference and submits. Progress is taken from the
observations alone, so a command whose observation lacks the expected text is repeated, up to three times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from r2v.data.action import parse_action
from r2v.envs.swe.instances import Instance
from r2v.llm.types import Request
from r2v.wire.message import Message

_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))?", re.M)
_FILE = re.compile(r"^diff --git a/(\S+) b/", re.M)
_TRIES = 3
_PATCHED = "the change is in place"


def solution(patch: str) -> list[tuple[str, str]]:
    """Return the commands that solve an instance, each with a text that its observation contains on success."""
    files = _FILE.findall(patch)
    first = int(match[1]) if (match := _HUNK.search(patch)) else 1
    reading = f"sed -n '{max(1, first - 3)},{first + 12}p' {files[0]}" if files else "ls"
    lines = patch.removesuffix("\n")  # not rstrip: the last context line may be blank
    change = f"git checkout -q HEAD -- {' '.join(files)}\n"
    change += f"git apply - <<'PATCH' && echo '{_PATCHED}'\n{lines}\nPATCH"
    return [(reading, "<returncode>0"), (change, _PATCHED), ("git diff --stat", files[0] if files else "<returncode>0")]


def next_action(instance: Instance, messages: Sequence[Message]) -> str:
    """Return the action after these messages as a line of JSON."""
    tried: dict[str, list[str]] = {}
    called = None
    for message in messages:
        if message.role == "assistant":
            called = parse_action(message.text).arguments.get("command")
        elif isinstance(called, str):
            tried.setdefault(called, []).append(message.text)
            called = None
    for command, sign in solution(instance.patch):
        shown = tried.get(command, [])
        if len(shown) < _TRIES and not any(sign in text for text in shown):
            return json.dumps({"tool": "bash", "command": command}, ensure_ascii=False, separators=(",", ":"))
    return '{"tool":"submit"}'


def wrong_action(request: Request) -> str:
    """Return the action of a player that adds a useless file and submits."""
    if any(message.role == "assistant" for message in request.messages):
        return '{"tool":"submit"}'
    return '{"tool":"bash","command":"echo nothing > r2v-wrong.txt"}'
