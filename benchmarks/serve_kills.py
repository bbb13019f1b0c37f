"""The server's books against the emulator's bill, after clients leave and after the server is killed.

    python -m benchmarks.serve_kills --aborts 1000 --kills 200

Aborts: on each wire, clients leave a stream after a drawn number of bytes; the emulator's bill and the books are
compared to the cent. Kills: while eight clients ask without pause, the server is killed (SIGKILL) at drawn times and
started again; each client repeats its request until it is answered. Printed: requests that stayed unanswered, the
difference between books and bill, and the entries marked unknown, which bound it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2

from r2v.config import load
from r2v.emulator import Emulator
from r2v.llm.providers.spending.journal_report import read_journal
from r2v.serve.server import listening
from r2v.serve.transport.endpoints import PATHS
from tests.serve.stub import in_thread
from tests.serve.wires import WIRES, body

KEY = "sk-kills-0123456789abcdef"
MODEL = "big-1"
HEADERS = {"authorization": f"Bearer {KEY}", "anthropic-version": "2023-06-01"}


def billed(emulator: Emulator) -> float:
    """Return the USD of the emulator's bill, at $1 and $4 per million tokens."""
    return sum((bill.tokens_in + 4 * bill.tokens_out) / 1e6 for bill in emulator.ledger().bills)


def aborts(number: int) -> None:
    """Print a row for each wire."""
    os.environ["OPENAI_API_KEY"], os.environ["R2V_SERVE_KEY"] = "sk-emulated", KEY
    for wire in WIRES:
        root, draw = Path(tempfile.mkdtemp(prefix="r2v-aborts-")), random.Random(7)
        with Emulator(models=[MODEL]) as emulator:
            teacher = {"provider": "openai", "model_name": MODEL, "base_url": emulator.openai_url}
            config = load({"teacher": teacher | {"usd_in": 1.0, "usd_out": 4.0}, "serve": {"port": 0}})

            async def main(ready: Callable[[Any], None], stop: asyncio.Event) -> None:
                async with listening(config, root, record=False) as server:  # noqa: B023
                    ready(server)
                    await stop.wait()

            with in_thread(main) as server, httpx2.Client(headers=HEADERS) as client:
                for count in range(number):
                    content = body(wire, stream=True)
                    content["input" if wire == "responses" else "messages"] = [
                        {"role": "user", "content": f"{count} " * 40}
                    ]
                    with client.stream("POST", server.url + PATHS[wire], json=content) as reply:
                        left = draw.randrange(600)
                        for piece in reply.iter_raw():
                            left -= len(piece)
                            if left < 0:
                                break
            state, bill = read_journal(root / "data/served/default"), billed(emulator)
        print(
            f"aborts {wire:10} {number} streams: bill ${bill:.6f}, books ${state.spent:.6f} and "
            f"{state.counts['lost']} unknown (at most ${state.lost_usd:.6f}), difference ${bill - state.spent:.6f}",
            flush=True,
        )


def kills(number: int) -> None:
    """Kill the server repeatedly, and print unanswered requests and the difference between books and bill."""
    root, draw = Path(tempfile.mkdtemp(prefix="r2v-kills-")), random.Random(7)
    with Emulator(models=[MODEL]) as emulator:
        words = [
            sys.executable,
            "-m",
            "r2v",
            "serve",
            "--record",
            "--llm",
            f"openai:{MODEL}",
            "--overrides",
            "serve.port=18490",
        ]
        words += [
            "serve.port=18490",
            f"teacher.base_url={emulator.openai_url}",
            "teacher.usd_in=1",
            "teacher.usd_out=4",
        ]
        env = {**os.environ, "OPENAI_API_KEY": "sk-emulated", "R2V_SERVE_KEY": KEY, "PYTHONPATH": str(Path.cwd())}
        load_words = [sys.executable, "-m", "benchmarks.serve_kills", "--clients", "18490"]
        answered = root / "answered"
        clients = subprocess.Popen([*load_words, str(answered)], env=env)
        for count in range(number + 1):
            log = (root / "log").open("ab")
            server = subprocess.Popen(words, cwd=root, env=env, stdout=log, stderr=log)
            _wait(server)
            time.sleep(0.05 + draw.random() * 0.4)
            if count < number:
                server.kill()
            else:
                (root / "stop").touch()
                clients.wait(120)
                server.terminate()
            server.wait(60)
            log.close()
        answers = json.loads(answered.read_text())
        state, bill = read_journal(root / "data/served/default"), billed(emulator)
    difference = bill - state.spent
    holds = -1e-9 <= difference <= state.lost_usd + 1e-9
    print(
        f"kills {number}: {answers['answered']} requests answered, {answers['unanswered']} unanswered after retries; "
        f"bill ${bill:.6f}, books ${state.spent:.6f} and {state.counts['lost']} unknown (at most "
        f"${state.lost_usd:.6f}); difference ${difference:.6f}, {'within' if holds else 'NOT within'} that amount"
    )


def _wait(server: subprocess.Popen[bytes]) -> None:
    for _ in range(400):
        try:
            httpx2.get("http://127.0.0.1:18490/healthz", timeout=1)
            return
        except httpx2.HTTPError:
            assert server.poll() is None, "the server ended"
            time.sleep(0.02)


async def ask_on(port: int, answered: Path) -> None:
    """Run eight clients that ask until a file appears, and repeat each request until it is answered."""
    counts = {"answered": 0, "unanswered": 0}
    stop = answered.with_name("stop")

    async def one(name: int) -> None:
        async with httpx2.AsyncClient(headers=HEADERS, timeout=10) as client:
            number = 0
            while not stop.exists():
                number += 1
                wire = WIRES[number % 3]
                content = body(wire, stream=bool(number % 2))
                content["input" if wire == "responses" else "messages"] = [
                    {"role": "user", "content": f"{name}/{number}"}
                ]
                for _ in range(400):
                    try:
                        reply = await client.post(f"http://127.0.0.1:{port}{PATHS[wire]}", json=content)
                        if reply.status_code == 200 and "event: error" not in reply.text:
                            counts["answered"] += 1
                            break
                    except httpx2.HTTPError:
                        pass
                    await asyncio.sleep(0.05)
                else:
                    counts["unanswered"] += 1

    await asyncio.gather(*(one(name) for name in range(8)))
    answered.write_text(json.dumps(counts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--aborts", type=int, default=1000, help="streams of each wire (default: 1000)")
    parser.add_argument("--kills", type=int, default=200, help="default: 200")
    parser.add_argument("--clients", nargs=2, help=argparse.SUPPRESS)
    values = parser.parse_args()
    if values.clients:
        asyncio.run(ask_on(int(values.clients[0]), Path(values.clients[1])))
        return
    if values.aborts:
        aborts(values.aborts)
    if values.kills:
        kills(values.kills)


if __name__ == "__main__":
    main()
