"""The stand-in teacher of SWE-bench: it knows the right patch, and solves as a careful engineer would.

It reads the place, changes it, looks at the difference and submits. Which of these is done it takes from the
observations alone, so a call that failed, or a page that does not show what came of it, is asked for again.
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
    """The commands that solve an instance, each with the text by which its observation shows that it was done."""
    files = _FILE.findall(patch)
    first = int(match[1]) if (match := _HUNK.search(patch)) else 1
    place = f"sed -n '{max(1, first - 3)},{first + 12}p' {files[0]}" if files else "ls"
    lines = patch.removesuffix("\n")  # no more: a context line may be blank
    change = f"git checkout -q HEAD -- {' '.join(files)}\n"
    change += f"git apply - <<'PATCH' && echo '{_PATCHED}'\n{lines}\nPATCH"
    return [(place, "<returncode>0"), (change, _PATCHED), ("git diff --stat", files[0] if files else "<returncode>0")]


def next_action(instance: Instance, messages: Sequence[Message]) -> str:
    """The action after these messages, as a line of JSON."""
    tried: dict[str, list[str]] = {}
    command = None
    for message in messages:
        if message.role == "assistant":
            command = parse_action(message.text).arguments.get("command")
        elif isinstance(command, str):
            tried.setdefault(command, []).append(message.text)
            command = None
    for wanted, sign in solution(instance.patch):
        shown = tried.get(wanted, [])
        if len(shown) < _TRIES and not any(sign in text for text in shown):
            return json.dumps({"tool": "bash", "command": wanted}, ensure_ascii=False, separators=(",", ":"))
    return '{"tool":"submit"}'


def wrong_action(request: Request) -> str:
    """The action of a player who adds a file that mends nothing, and submits."""
    if any(message.role == "assistant" for message in request.messages):
        return '{"tool":"submit"}'
    return '{"tool":"bash","command":"echo nothing > r2v-wrong.txt"}'
