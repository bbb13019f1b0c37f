"""Answers kept and requests paid: inspect_ai's batch mode and ours on one emulated OpenAI, under the same faults.

    python -m venv /tmp/peer && /tmp/peer/bin/pip install inspect_ai==0.3.285 openai
    python benchmarks/waves_peer.py /tmp/peer/bin/python

Ten requests each. Kept: answers present at the end; paid: requests billed in the emulator's ledger. inspect_ai has a
venv of its own.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from r2v.emulator import Emulator, Fault, Lifecycle

COUNT = 10
CASES = {
    "no fault": ((), False),
    "2 of 10 lines rejected": ((Fault("line_400", at=(2, 5)),), False),
    "half of the batch expired": ((Fault("expired_half_done", at=1),), False),
    "500 after the batch was made": ((Fault("commit_then_500", at=1),), False),
    "kill -9 in flight, then again": ((), True),
}

PEER = """
import sys
from pathlib import Path
from inspect_ai import Task, eval, eval_retry, task
from inspect_ai.dataset import Sample
from inspect_ai.model import BatchConfig
from inspect_ai.solver import generate
batch = BatchConfig(size=10, send_delay=0.5, tick=0.2)
@task
def ten():
    return Task(dataset=[Sample(input=f"conversation {n}") for n in range(10)], solver=generate())
logs = sorted(Path(sys.argv[1]).glob("*.eval"))
common = dict(log_dir=sys.argv[1], display="none", fail_on_error=False, max_retries=2)
if logs:
    log = eval_retry(str(logs[-1]), **common)[0]
else:
    log = eval(ten(), model="openai/gpt-4o-mini", batch=batch, **common)[0]
print("KEPT", sum(bool(s.output.completion) for s in log.samples or []))
"""

OURS = """
import sys
from functools import partial
from pathlib import Path
from r2v.llm.providers.openai import OpenAI
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy
from r2v.llm.providers.prices import rate_of
from r2v.llm.providers.remote import ProviderRemote, Unanswered
from r2v.llm.types import Request
from r2v.wire.message import Message
from r2v.llm.waves import Waves
rate = rate_of("openai", "gpt-4o-mini")
waves = Waves(max_conversations=10)
model = waves.model(ProviderRemote(OpenAI(rate), rate, Path(sys.argv[1]), DispatchPolicy(
    mode="batch", flush_seconds=0.5, poll_seconds=0.2, reconcile_after=1.0), scope={}))
async def one(n):
    try:
        said = (Message(role="user", content=f"conversation {n}"),)
        return (await model.reply(Request(messages=said, key=(n,)))).text
    except Unanswered:
        return ""
print("KEPT", sum(map(bool, waves.run(partial(one, n) for n in range(10)))))
"""


def play(command: Sequence[str], faults: Sequence[Fault], killed: bool) -> tuple[int, int]:
    """Return (kept, paid) of one side under some faults."""
    served = Emulator(faults=faults, lifecycle=Lifecycle(polls=3), models=["gpt-4o-mini"])
    with served as emulator, tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"OPENAI_API_KEY": "sk-none", "OPENAI_BASE_URL": emulator.openai_url}
        if killed:
            process = subprocess.Popen(
                [*command, folder], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            while not emulator.ledger().bills and process.poll() is None:
                time.sleep(0.02)
            process.send_signal(signal.SIGKILL)
            process.wait()
        done = subprocess.run([*command, folder], env=environment, capture_output=True, text=True, timeout=300)
        kept_counts = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("KEPT")]
        if not kept_counts:
            print(done.stderr[-1500:], file=sys.stderr)
        return kept_counts[0] if kept_counts else 0, len(emulator.ledger().bills)


def main() -> None:
    """Print kept and paid for both, case by case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", type=Path, help="the Python of a venv with inspect_ai in it")
    arguments = parser.parse_args()
    ways = {"inspect_ai": [str(arguments.peer), "-c", PEER], "r2v": [sys.executable, "-c", OURS]}
    print(f"{'':<32}" + "".join(f"{name:>22}" for name in ways))
    print(f"{'of 10 requests':<32}" + f"{'kept':>15}{'paid':>7}" * len(ways))
    for case, (faults, killed) in CASES.items():
        figures = [play(command, faults, killed) for command in ways.values()]
        print(f"{case:<32}" + "".join(f"{answers:>15}{paid:>7}" for answers, paid in figures), flush=True)


if __name__ == "__main__":
    main()
