"""SWE-bench's world: a shell in a repository with a bug, and `submit` to have the changes graded.

An observation is a command's status and output; long output loses its middle. Times, addresses and the sandbox's user
are normalised, so that the same actions give the same text again. `submit` takes the difference to the base commit as
a patch and grades it in a fresh repository (`r2v.envs.swe.grading`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from r2v.data.action import parse_action
from r2v.envs.base import Info, Task
from r2v.envs.swe.grading import Grade, grade
from r2v.envs.swe.instances import Instance
from r2v.envs.swe.opening import Opener
from r2v.envs.swe.patches import take_patch
from r2v.envs.swe.shells import TESTBED, BubblewrapShell, Shell
from r2v.wire.message import ToolSpec

_MOST_COMMAND = 100_000
"""Characters of a command, below the kernel's limit of 128 KiB per argument."""
_SECONDS = re.compile(r"\b\d+\.\d+( ?s(?:econds?)?\b)")
_DATE = re.compile(r"\b(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ \d]\d (?:\d\d:\d\d(?::\d\d)?| \d{4})")
_ADDRESS = re.compile(r"\b0x[0-9a-f]{8,16}\b")

SWE_TOOLS = (
    ToolSpec(
        name="bash",
        description=f"Run a shell command in {TESTBED}. Each starts anew there; files last, `cd` and variables do not.",
        parameters={"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    ),
    ToolSpec(
        name="submit",
        description="Hand in the repository as it is now, which ends the task. Hidden tests judge it.",
        parameters={"type": "object", "properties": {}, "required": []},
    ),
)


@dataclass(frozen=True, slots=True)
class SweState:
    """State of a world in the sandbox: its instance, the packed home, and True in `over` after the end."""

    instance_id: str
    home: bytes
    over: bool


class SweEnvironment:
    """A world with one repository at a time. Only the sandbox has snapshots."""

    def __init__(
        self, instances: Mapping[str, Instance], opener: Opener, *, observation_chars: int, test_seconds: int
    ) -> None:
        self._instances, self._opener = instances, opener
        self._most, self._test_seconds = observation_chars, test_seconds
        self._instance: Instance | None = None
        self._shell: Shell | None = None
        self._over = True

    def reset(self, *, seed: int, task: Task) -> tuple[str, Info]:
        """Open a shell in the task's repository; the seed has no effect. Raises EnvironmentFault if that fails."""
        self.close()
        self._instance = self._instances[task.payload["instance_id"]]
        self._shell = self._opener.open(self._instance)
        self._over = False
        done = self._shell.execute({"command": "git ls-files | sed 's,/.*,/,' | uniq"}, TESTBED)
        name = f"{self._instance.repo.rpartition('/')[2].removesuffix('.git')} {self._instance.version}".strip()
        return f"{TESTBED} holds {name}, under git:\n{self._shown(done)}", Info()

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Run a command, or submit. Raises RuntimeError before `reset` and after the end."""
        if self._shell is None or self._over:
            raise RuntimeError("no repository is open: reset first")
        call = parse_action(action)
        command = call.arguments.get("command")
        if call.action_type == "submit" and not call.arguments:
            return self._submit(self._shell)
        if call.action_type != "bash" or set(call.arguments) != {"command"} or not isinstance(command, str):
            return _refused('give one call: {"tool":"bash","command":"..."} or {"tool":"submit"}')
        if "\0" in command or len(command) > _MOST_COMMAND:
            return _refused(f"a command has no zero byte and at most {_MOST_COMMAND} characters")
        done = self._shell.execute({"command": command}, TESTBED)
        if done["returncode"] == -1:
            return _refused(str(done["exception_info"]))
        return self._shown(done), 0.0, False, False, Info()

    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """Return the tools bash and submit."""
        return SWE_TOOLS

    def snapshot(self) -> SweState:
        """Return the repository and all other files. Raises RuntimeError for a shell other than the sandbox."""
        if not isinstance(self._shell, BubblewrapShell) or self._instance is None:
            raise RuntimeError("a container has no snapshot")
        return SweState(self._instance.instance_id, self._shell.home, self._over)

    def restore(self, state: SweState) -> None:
        """Return to a state from `snapshot`, also in another world."""
        if self._instance is None or self._instance.instance_id != state.instance_id or self._shell is None:
            self.close()
            self._instance = self._instances[state.instance_id]
            self._shell = self._opener.open(self._instance)
        if not isinstance(self._shell, BubblewrapShell):
            raise RuntimeError("a container has no snapshot")
        self._shell.home, self._over = state.home, state.over

    def close(self) -> None:
        """End the shell and release its resources."""
        shell, self._shell, self._over = self._shell, None, True
        _clean(shell)

    def _submit(self, shell: Shell) -> tuple[str, float, bool, bool, Info]:
        assert self._instance is not None  # reset has set both
        patch = take_patch(shell, self._instance.base_commit)
        self._over = True
        verdict = (
            Grade(resolved=False, reason="no difference to the base commit could be taken")
            if patch is None
            else self._graded(self._instance, patch)
        )
        if verdict.fault is not None:
            return "", 0.0, False, True, Info(env_fault=verdict.fault)
        info = Info(success=verdict.resolved, partial_score=verdict.score, extra={"grading": verdict.reason})
        return f"submitted: {verdict.reason}", float(verdict.resolved), True, False, info

    def _graded(self, instance: Instance, patch: bytes) -> Grade:
        fresh = self._opener.open(instance)
        try:
            return grade(fresh, instance, patch, timeout=self._test_seconds)
        finally:
            _clean(fresh)

    def _shown(self, done: dict[str, Any]) -> str:
        output = even(str(done["output"])).rstrip("\n")
        return f"<returncode>{done['returncode']}</returncode>\n<output>\n{shortened(output, self._most)}\n</output>"


def _refused(reason: str) -> tuple[str, float, bool, bool, Info]:
    return f"error: {reason}", 0.0, False, False, Info(is_error=True)


def _clean(shell: Any) -> None:
    cleanup = getattr(shell, "cleanup", None)
    if callable(cleanup):
        cleanup()


def even(text: str) -> str:
    """Return the text with its run-dependent parts normalised: seconds, file dates, memory addresses.

    >>> even("2 passed in 0.31s at 0x7f3a11c0d2e0")
    '2 passed in 0.00s at 0x0'
    """
    return _ADDRESS.sub("0x0", _DATE.sub("Sep 13  2020", _SECONDS.sub(r"0.00\1", text)))


def shortened(text: str, most: int) -> str:
    """Return the beginning and the end of a text, about `most` characters in all, with a note on the omitted middle.

    >>> shortened("abcdefghij", 4)
    'ab\\n[6 characters left out; ask for less with head, tail, sed or grep]\\nij'
    """
    if len(text) <= most:
        return text
    half = most // 2
    left = len(text) - 2 * half
    return f"{text[:half]}\n[{left} characters left out; ask for less with head, tail, sed or grep]\n{text[-half:]}"
