"""Unmodified third-party agents in front of the server: sessions that end well, and the books against the bill.

    python -m benchmarks.clients --install        # pinned versions, from npm and PyPI, into outputs/peers
    python -m benchmarks.clients --sessions 50    # in a network namespace with loopback only, if possible

The task of each agent is to make a file. The LLM is the emulator: it answers the first turn with a call of the agent's
own shell tool and the next with text. In half of the sessions the agent's first session defines a bundle's domain, and
a router sends every turn after an error to the LLM, so that the small model acts too. Printed for each agent: sessions
that ended with exit code 0 and the file, turns of either model, and the books beside the emulator's bill.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from r2v.config import load
from r2v.data.interchange.served import recorded_turns
from r2v.emulator import EmulatedRequest, Emulator
from r2v.errors import EnvironmentFault
from r2v.serve.accounts.traffic import read_traffic
from r2v.serve.bundle.domain import domain_of
from r2v.serve.server import listening
from r2v.storage.paths import SERVERS, SESSIONS
from r2v.wire import anthropic, chat, responses
from tests.serve.pairs import make_bundle
from tests.serve.stub import in_thread

HOME = Path("outputs/peers/clients")
COMMAND = "echo done > out.txt"
LARGE, SMALL = "big-1", "little-1"
_READERS: Mapping[str, Any] = {"chat": chat, "responses": responses, "messages": anthropic}
_INSIDE = "R2V_CLIENTS_INSIDE"
_END = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""Command by which mini-swe-agent ends a session."""


@dataclass(frozen=True, kw_only=True)
class Client:
    """An agent. `words` and `prepare` are given the server's URL."""

    package: str
    program: str
    words: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[Path, str, str], None] = lambda home, url, key: None

    @property
    def home(self) -> Path:
        """Folder of its installation."""
        return (HOME / self.package.replace("/", "-")).absolute()

    @property
    def by_npm(self) -> bool:
        """True if it comes from npm, else from PyPI."""
        return "==" not in self.package


def _codex(home: Path, url: str, key: str) -> None:
    (home / ".codex").mkdir()
    lines = ['model = "r2v"', 'model_provider = "r2v"', "[model_providers.r2v]", 'name = "r2v"']
    lines += [f'base_url = "{url}/v1"', 'env_key = "OPENAI_API_KEY"', 'wire_api = "responses"']
    (home / ".codex" / "config.toml").write_text("\n".join(lines))


def _opencode(home: Path, url: str, key: str) -> None:
    provider = {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": f"{url}/v1", "apiKey": key}}
    provider["models"] = {"r2v": {"name": "r2v"}}
    settings = {"provider": {"r2v": provider}, "model": "r2v/r2v", "permission": {"bash": "allow"}}
    (home / "work" / "opencode.json").write_text(json.dumps(settings))


_AGENTS_SDK = """
import subprocess
from agents import Agent, Runner, function_tool, set_tracing_disabled

@function_tool
def bash(command: str) -> str:
    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout

set_tracing_disabled(True)
agent = Agent(name="maker", instructions="Work in a shell.", tools=[bash], model="r2v")
print(Runner.run_sync(agent, "Make out.txt").final_output)
"""
"""An agent of the OpenAI Agents SDK, which asks by Responses."""

CLIENTS: Mapping[str, Client] = {
    "Claude Code": Client(
        package="@anthropic-ai/claude-code@2.1.332",
        program="claude",
        words=("-p", "Make out.txt", "--allowedTools", "Bash"),
        env={"ANTHROPIC_MODEL": "r2v", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "IS_SANDBOX": "1"},
    ),
    "Codex": Client(
        package="@openai/codex@0.171.0",
        program="codex",
        words=("exec", "--skip-git-repo-check", "-s", "danger-full-access", "Make out.txt"),
        prepare=_codex,
    ),
    "opencode": Client(
        package="opencode-ai@1.18.33",
        program="opencode",
        words=("run", "-m", "r2v/r2v", "Make out.txt"),
        prepare=_opencode,
    ),
    "qwen-code": Client(
        package="@qwen-code/qwen-code@0.24.4",
        program="qwen",
        words=("--auth-type", "openai", "-y", "-p", "Make out.txt"),
        env={"OPENAI_MODEL": "r2v"},
    ),
    "Agents SDK": Client(package="openai-agents==0.24.0", program="python", words=("-c", _AGENTS_SDK)),
    "mini-swe-agent": Client(
        package="mini-swe-agent==2.4.6",
        program="mini",
        words=(
            *("-m", "openai/r2v", "-t", "Make out.txt", "-y", "--exit-immediately", "-c", "mini.yaml"),
            *("-c", "model.model_kwargs.api_base={url}/v1"),
        ),
        env={
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
    ),
}
_SHELLS = {"exec_command": "cmd", "run_shell_command": "command", "Bash": "command", "bash": "command"}
"""Shell tool of each agent -> its argument."""


def says(request: EmulatedRequest) -> str:
    """Call the agent's shell once, then end."""
    body = request.body
    offered = json.dumps(body.get("tools") or [])
    history = json.dumps(body.get("messages") or body.get("input"))
    tool = next((name for name in _SHELLS if f'"{name}"' in offered), None)
    if tool is None:
        return "A file is made"
    ran = any(mark in history for mark in ('"tool_result"', '"role": "tool"', "call_output"))
    if ran and "COMPLETE_TASK_AND_SUBMIT" not in history:
        return "The file is there."
    command = _END if ran else COMMAND
    more = {"description": "make out.txt"} | ({"is_background": False} if tool == "run_shell_command" else {})
    return json.dumps({"tool": tool, _SHELLS[tool]: command} | ({} if tool == "exec_command" else more))


def install(names: Sequence[str]) -> None:
    """Install these clients. Raises EnvironmentFault."""
    for client in map(CLIENTS.__getitem__, names):
        home = client.home
        words = [["npm", "install", "--silent", "--prefix", str(home), client.package]]
        if not client.by_npm:
            words = [
                [sys.executable, "-m", "venv", str(home)],
                [str(home / "bin/pip"), "install", "-q", client.package],
            ]
        for command in words:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise EnvironmentFault(f"{client.package}: cannot be installed: {done.stderr.strip()[-300:]}")


def program_of(client: Client) -> Path:
    """Return the path of a client's program."""
    folder = "node_modules/.bin" if client.by_npm else "bin"
    return client.home / folder / client.program


def session(client: Client, url: str, key: str) -> bool:
    """Run one session in a home of its own; True if it ended with exit code 0 and the file."""
    home = Path(tempfile.mkdtemp(prefix="r2v-client-"))
    (home / "work").mkdir()
    client.prepare(home, url, key)
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "dumb", **client.env}
    env |= {"OPENAI_API_KEY": key, "OPENAI_BASE_URL": f"{url}/v1", "ANTHROPIC_API_KEY": key, "ANTHROPIC_BASE_URL": url}
    words = [str(program_of(client)), *(word.format(url=url) for word in client.words)]
    try:
        done = subprocess.run(
            words, cwd=home / "work", env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=180, check=False
        )
        return done.returncode == 0 and (home / "work" / "out.txt").exists()
    except subprocess.TimeoutExpired:
        return False
    finally:
        shutil.rmtree(home, ignore_errors=True)


def measure(name: str, client: Client, sessions: int) -> str:
    """Run the sessions of a client, half of them routed; its row."""
    root = Path(tempfile.mkdtemp(prefix="r2v-clients-"))
    with Emulator(answer=says, models=[LARGE, SMALL]) as emulator:
        ended = _served(root, emulator, client, sessions - sessions // 2, None)
        ended += _served(root, emulator, client, sessions // 2, _bundle(root))
        rows = [row for row in read_traffic(root / "data/served/default") if row["kind"] == "turn"]
        booked = sum(row["usd"] for row in rows) + sum(_thrown_away(row) for row in rows)
        bills = emulator.ledger().bills
    billed = sum((bill.tokens_in + 4 * bill.tokens_out) / 1e6 * (0.1 if bill.model == SMALL else 1) for bill in bills)
    turns = Counter(row["source"] for row in rows)
    failed = Counter(row["status"] for row in rows if row["status"] != 200)
    shutil.rmtree(root)
    return (
        f"{name:15} {client.package.rpartition('@')[2] if client.by_npm else client.package.partition('==')[2]:8} "
        f"{ended:3} of {sessions} sessions, {turns['llm']} turns of the LLM, {turns['small']} of the small model, "
        f"booked ${booked:.6f}, billed ${billed:.6f}{f', failed {dict(failed)}' if failed else ''}"
    )


def _thrown_away(row: Mapping[str, Any]) -> float:
    """Return the cost of a proposal that the router discarded."""
    small = row.get("decision", {}).get("small")
    return small["usd"] if small and row["source"] == "llm" else 0.0


def _bundle(root: Path) -> Path:
    """Make a bundle whose domain is that of the sessions recorded so far."""
    turns = [turn for path in (root / SERVERS / "default" / SESSIONS).iterdir() for turn in recorded_turns(path)]
    requests = (_READERS[turn["wire"]].read_request(json.loads(turn["request"])) for turn in turns)
    return make_bundle(root / "bundle", domain=domain_of(requests))


def _served(root: Path, emulator: Emulator, client: Client, sessions: int, bundle: Path | None) -> int:
    prices = {"base_url": emulator.openai_url, "usd_in": 1.0, "usd_out": 4.0}
    teacher = {"provider": "openai", "model_name": LARGE, **prices}
    policy = {"provider": "openai", "model_name": SMALL, "api": {**prices, "usd_in": 0.1, "usd_out": 0.4}}
    config = load({"teacher": teacher, "policy": policy, "serve": {"port": 0}})

    async def main(ready: Callable[[Any], None], stop: asyncio.Event) -> None:
        async with listening(config, root, record=True, bundle=bundle) as server:
            ready(server)
            await stop.wait()

    with in_thread(main) as server:
        key = server.keys_file.read_text().split()[1]
        return sum(session(client, server.url, key) for _ in range(sessions))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", action="store_true", help="install the clients (default: run sessions)")
    parser.add_argument("--sessions", type=int, default=50, help="of each client (default: 50)")
    parser.add_argument(
        "--only", nargs="+", default=list(CLIENTS), choices=list(CLIENTS), help="clients (default: all)"
    )
    values = parser.parse_args()
    if values.install:
        install(values.only)
        return
    if _INSIDE not in os.environ:
        words = [sys.executable, "-m", "benchmarks.clients", *sys.argv[1:]]
        inside = ["unshare", "-rn", "bash", "-c", 'ip link set lo up && exec "$@"', "-", *words]
        alone = subprocess.run(["unshare", "-rn", "true"], check=False, capture_output=True).returncode == 0
        if not alone:
            print("no network namespace can be made here: clients may reach other hosts")
        env = {**os.environ, _INSIDE: "1", "OPENAI_API_KEY": "sk-emulated"}
        sys.exit(subprocess.run(inside if alone else words, env=env, check=False).returncode)
    for name in values.only:
        if not program_of(CLIENTS[name]).exists():
            print(f"{name:15} is not installed: python -m benchmarks.clients --install")
            continue
        print(measure(name, CLIENTS[name], values.sessions), flush=True)


if __name__ == "__main__":
    main()
