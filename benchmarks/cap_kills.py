"""One cost cap over a stage, its helpers and their kills: the bill stays below it, and nothing is paid twice.

    python -m benchmarks.cap_kills --folder /tmp/cap-kills --kills 20 --helpers 3

Two API models on the desk. A stage with `--helpers` helpers makes the features under a cap that is reached several
times and raised each time; one of the processes, drawn by a key, is killed by signal 9 and started again. Printed: the
cap, the emulator's bill, the sum of the journals, and the calls that were in flight at a kill.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from benchmarks.estimates import answer_of
from r2v.emulator import Emulator, Lifecycle
from r2v.emulator.ledger import Bill
from r2v.llm.providers.prices import rate_of
from r2v.llm.providers.spending.project import ProjectLedger
from r2v.randomness import generator
from r2v.wire.exchange import TokenCounts

LARGE, SMALL = "gpt-5.2", "gpt-5-nano"


def billed(call: Bill) -> float:
    """Return the USD of a direct call."""
    fresh = call.tokens_in - call.cached_in
    return rate_of(call.provider, call.model).usd(
        TokenCounts(fresh=fresh, cached=call.cached_in, output=call.tokens_out), batch=False
    )


def words(cap: float, *, helper: bool) -> list[str]:
    """Return the command of the stage, or of a helper."""
    settings = (
        f"prefix=caps teacher.provider=openai teacher.model_name={LARGE} teacher.max_tokens=64 teacher.mode=concurrent "
        f"teacher.max_usd={cap} teacher.preflight=false policy.provider=openai policy.model_name={SMALL} "
        "policy.api.max_tokens=64 router.rounds=0 router.num_tasks=80 router.num_calibration_tasks=40 "
        "router.features=[progress,page,tool] rollout.max_conversations=4 rollout.episodes_per_block=2 "
        "teacher.max_concurrent=4 teacher.max_conversations=4"
    )
    return ["generate_router_features", "--overrides", *settings.split(), *(["rollout.helpers=join"] if helper else [])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=20, help="default: 20")
    parser.add_argument("--helpers", type=int, default=3, help="default: 3")
    parser.add_argument("--step", type=float, default=0.04, help="USD by which the cap is raised (default: 0.04)")
    values = parser.parse_args()
    values.folder.mkdir(parents=True)
    os.chdir(values.folder)
    draw, cap, kills, good, reached = generator("cap kills"), values.step, 0, True, 0

    def bill(emulator: Emulator) -> float:
        return sum(map(billed, emulator.ledger().bills))

    with Emulator(answer=answer_of("desk", SMALL), lifecycle=Lifecycle(polls=1)) as emulator:
        environment = {**os.environ, "OPENAI_API_KEY": "sk-emulated-0123456789", "OPENAI_BASE_URL": emulator.openai_url}

        def start(helper: bool) -> subprocess.Popen[bytes]:
            with Path(f"log-{'helper' if helper else 'stage'}.txt").open("ab") as log:
                command = [sys.executable, "-m", "r2v", *words(cap, helper=helper)]
                return subprocess.Popen(command, env=environment, stdout=log, stderr=log)

        processes = [start(False), *(start(True) for _ in range(values.helpers))]
        while (code := processes[0].poll()) != 0:
            if code == 5:
                reached, cap = reached + 1, round(cap + values.step, 6)
            if code is not None and code not in (5, -signal.SIGKILL):
                print(f"the stage failed with exit code {code}; see {values.folder}/log-stage.txt")
                return 1
            good = good and bill(emulator) <= cap
            if kills < values.kills and draw.random() < 0.9:
                victim = draw.randrange(len(processes))
                if processes[victim].poll() is None:
                    processes[victim].kill()
                    processes[victim].wait()
                    kills += 1
            for number, process in enumerate(processes):
                if process.poll() is not None and (number == 0 or process.returncode != 0):
                    processes[number] = start(number > 0)
            time.sleep(2.0 + draw.random())
        for process in processes:
            process.wait()
        bills, books = emulator.ledger().bills, ProjectLedger(Path())
        views = [books.book(entry) for entry in books.entries()]
        requests = Counter((call.model, call.turn[1:], call.body_sha256) for call in bills if call.turn)
        again = sum(times - 1 for times in requests.values())
        total, journalled = bill(emulator), sum(view.usd for view in views)
        print(f"{kills} kills, cap reached {reached} times, last cap ${cap:.2f}")
        print(
            f"billed ${total:.4f}, journals ${journalled:.4f}; {len(bills)} calls, {again} of them repeats after a kill"
        )
        good = good and total <= journalled + 1e-6 <= cap + 2e-6
    print("holds" if good else "DOES NOT HOLD")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
