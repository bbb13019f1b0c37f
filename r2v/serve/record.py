"""Recording of one run of a command: its requests go through a server of its own, and its outcome is logged.

    done = await record_command(["mini", "-t", "Fix the bug."], config, task="bug-7")
    done.success, done.turns, done.usd

The command finds the server in the variables that agents read; its key is valid only while it runs. It succeeds if it
exits with 0, unless it reports otherwise: POST {"success": false} to $R2V_FEEDBACK_URL.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from r2v.config import Config
from r2v.errors import InputError, UsageError
from r2v.llm.providers.registry.table import own_keys
from r2v.serve.accounts.traffic import read_traffic
from r2v.serve.server import Listening, listening
from r2v.storage.paths import SERVERS, TRAFFIC


@dataclass(frozen=True, kw_only=True)
class RecordedCommand:
    """One run of a command. usd: billed; for replies without a usage, the worst case."""

    task: str
    attempt: int
    exit_code: int
    success: bool
    turns: int
    usd: float
    folder: Path

    @property
    def line(self) -> str:
        """Summary in one line."""
        how = "succeeded" if self.success else "failed"
        return f"{self.task}: {how} (exit {self.exit_code}), {self.turns} requests, ${self.usd:.4f}; {self.folder}"


async def record_command(words: Sequence[str], config: Config, root: Path = Path(), *, task: str) -> RecordedCommand:
    """Run a command in front of a server of its own. Raises UsageError for an unknown command, InputError for one that
    cannot be run, and as `listening` does."""
    if config.serve.port:  # any free port, so that recordings may run beside `r2v serve`
        config = replace(config, serve=replace(config.serve, port=0))
    folder = root / SERVERS / config.serve.name
    attempt = max((_attempt(row["key"], task) for row in _rows(folder)), default=-1) + 1
    key_name, key = f"{task}/{attempt}", f"r2v-{secrets.token_urlsafe(32)}"
    async with listening(config, root, record=True, keys={key_name: key}) as server:
        exit_code = await _run(words, _variables(server, key, task, config))
        feedback = [row["success"] for row in _rows(folder) if row["kind"] == "feedback" and row["key"] == key_name]
        success = feedback[-1] if feedback else exit_code == 0
        about = {"kind": "outcome", "at": round(time.time(), 3), "key": key_name, "task": task}
        server.traffic.append({**about, "exit": exit_code, "success": success})
    done = recorded(config, root, task=task)
    assert done is not None, "the outcome was just logged"
    return done


def recorded(config: Config, root: Path = Path(), *, task: str) -> RecordedCommand | None:
    """Return the last recorded run of a task; None if there is none."""
    folder = root / SERVERS / config.serve.name
    rows = _rows(folder)
    outcomes = [row for row in rows if row["kind"] == "outcome" and row["task"] == task]
    if not outcomes:
        return None
    turns = [row for row in rows if row["kind"] == "turn" and row["key"] == outcomes[-1]["key"]]
    return RecordedCommand(
        task=task,
        attempt=_attempt(outcomes[-1]["key"], task),
        exit_code=outcomes[-1]["exit"],
        success=outcomes[-1]["success"],
        turns=len(turns),
        usd=sum(row["usd"] if row["usd"] is not None else row["at_most"] for row in turns),
        folder=folder,
    )


def _attempt(key: str, task: str) -> int:
    """Return the attempt in a key's name; -1 for another task's. A killed run has a key but no outcome."""
    number = key.removeprefix(f"{task}/")
    return int(number) if number != key and number.isdecimal() else -1


def _rows(folder: Path) -> list[dict[str, Any]]:
    return list(read_traffic(folder)) if (folder / TRAFFIC).exists() else []


def _variables(server: Listening, key: str, task: str, config: Config) -> Mapping[str, str]:
    """Return the command's environment: the server in the variables of both SDKs, and no provider's key."""
    teacher = config.teacher
    hidden = {key.variable for key in own_keys().values()} | {str(teacher.api_key_env), "ANTHROPIC_AUTH_TOKEN"}
    inherited = {name: value for name, value in os.environ.items() if name not in hidden}
    return inherited | {
        "OPENAI_BASE_URL": f"{server.url}/v1",
        "OPENAI_API_BASE": f"{server.url}/v1",
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_API_KEY": key,
        "R2V_SERVE_URL": server.url,
        "R2V_FEEDBACK_URL": f"{server.url}/v1/feedback",
        "R2V_TASK": task,
    }


async def _run(words: Sequence[str], variables: Mapping[str, str]) -> int:
    try:
        process = await asyncio.create_subprocess_exec(*words, env=variables)
    except FileNotFoundError:
        raise UsageError(f"{words[0]:.100}: no such command") from None
    except OSError as error:
        raise InputError(f"{words[0]:.100}: cannot be run ({error.strerror})") from None
    loop = asyncio.get_running_loop()

    def forward(number: int) -> None:
        if number == signal.SIGTERM or sys.stdin is None or not sys.stdin.isatty():  # a terminal sends ^C to both
            process.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, forward, number)
    try:
        code = await process.wait()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    return code if code >= 0 else 128 - code
