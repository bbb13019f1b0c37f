"""Predicted figures of a router from recorded sessions, beside those of the served pair as executed.

    python -m benchmarks.records               # 60 recorded desk tasks, 60 others played through the pair; 4 minutes

The agent is R2V's own at the desk with native calls, under the noisy condition, and knows of no router. The LLM is the
desk's expert behind the emulator. There are three small models: one acts as the expert does except on error pages, one
slips at random, which only its proposals show, and one costs as much as the LLM. Each pair is recorded, fitted and
served by the commands of docs/serve.md. Printed: the prediction on the router's page, and, for the LLM alone and for
the served pair, success on tasks that were not recorded, the emulator's bill, and the LLM's share of the turns.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from r2v.config import Config, TaskSelection, load
from r2v.data.registry import DataRegistry
from r2v.emulator import EmulatedRequest, Emulator
from r2v.envs.desk import Desk
from r2v.envs.desk.emulated import answer
from r2v.llm.waves import Waves
from r2v.randomness import uniform
from r2v.rollout.actors import GreedyActor
from r2v.rollout.model_factory import Purse, priced_teacher
from r2v.rollout.session import RolloutWorld, episode_specs, play_many
from r2v.router.page_signals import is_error
from r2v.serve.accounts.traffic import read_traffic
from r2v.serve.server import listening
from tests.serve.stub import in_thread

LARGE, SMALL = "big-1", "little-1"
PRICES = {LARGE: 1.0, SMALL: 0.1}
"""USD per million prompt tokens; four times as much per million of the reply."""
WRONG = '{"tool": "get", "id": "r1"}'
Slip = Callable[[EmulatedRequest], bool]
SMALLS: Mapping[str, tuple[Slip, float]] = {
    "fails on errors": (lambda request: is_error(request.messages[-1].text), 0.1),
    "slips at random": (lambda request: uniform("slip", request.sha256) < 0.3, 0.1),
    "costs as much": (lambda request: is_error(request.messages[-1].text), 1.0),
}


def agent(url: str, model: str, key_env: str) -> Config:
    """Return the desk's own agent, which asks a model at a URL."""
    teacher = {"provider": "openai", "model_name": model, "base_url": url, "usd_in": 1.0, "usd_out": 4.0}
    more = {"api_key_env": key_env, "preflight": False, "mode": "concurrent", "max_tokens": 64, "actions": "tools"}
    return load({"teacher": {**teacher, **more, "model": {"tools": "everywhere"}}, "data": {"condition": "noisy"}})


def played(config: Config, split: str, tasks: int, folder: Path) -> float:
    """Play the first tasks of a split; the share that succeeds."""
    desk, waves = Desk(), Waves(workers=2)
    llm = priced_teacher(config.teacher, config.cost, desk, waves, Purse(folder=folder, root=folder))
    world = RolloutWorld(desk, config.perturbations, config.inference)
    selection = TaskSelection.training(config) if split == "train" else TaskSelection.evaluation(config, "noisy")
    specs = episode_specs(desk, split, [1], selection, method="agent", limit=tasks)
    return fmean(episode.success for episode in play_many(waves, world, specs, GreedyActor(llm, "teacher")))


def measure(name: str, tasks: int) -> None:
    """Record, fit and serve one pair, and print its figures."""
    slips, price = SMALLS[name]

    def said(request: EmulatedRequest) -> str:
        return WRONG if request.model == SMALL and slips(request) else answer(request)

    root = Path(tempfile.mkdtemp(prefix="r2v-records-"))
    with Emulator(answer=said, models=[LARGE, SMALL]) as emulator:
        url = emulator.openai_url
        teacher = {"provider": "openai", "model_name": LARGE, "base_url": url, "usd_in": 1.0, "usd_out": 4.0}
        policy = {"provider": "openai", "model_name": SMALL}
        api = {"base_url": url, "usd_in": price, "usd_out": 4 * price}
        serving = {"teacher": teacher, "policy": {**policy, "api": api}, "serve": {"port": 0}}
        _through(root, serving, "train", tasks, None)
        words = ["env.benchmark=logs", "router.label=imputed", "router.model=case_support", "teacher.max_usd=50"]
        words += ["teacher.mode=concurrent", *(f"policy.{key}={value}" for key, value in policy.items())]
        words += [f"policy.api.{key}={value}" for key, value in api.items()]
        _r2v(root, "import", "data/served/default")
        (run,) = DataRegistry(root / "data").query()
        words = ["--overrides", *words, f"data.runs=[{run.run_id}]", "router.budget=0.3"]
        output = _r2v(root, "run", *words)
        _r2v(root, "export", "bundle", *words)
        print(f"{name}: " + next(line.strip() for line in output.splitlines() if "n = " in line))
        for who, bundle in (("LLM alone", None), ("served pair", root / "bundle")):
            before = len(emulator.ledger().bills)
            success, share = _through(root, serving, "evaluation", tasks, bundle)
            rates = {LARGE: 1.0, SMALL: price}
            bills = emulator.ledger().bills[before:]
            usd = sum(rates[bill.model] * (bill.tokens_in + 4 * bill.tokens_out) / 1e6 for bill in bills)
            print(f"  {who:12} success {success:.3f}, ${usd:.4f}, LLM turns {share:.0%}", flush=True)


def _through(root: Path, serving: dict[str, Any], split: str, tasks: int, bundle: Path | None) -> tuple[float, float]:
    """Play tasks through a server; success, and the LLM's share of the turns."""
    name = "default" if split == "train" else "llm" if bundle is None else "pair"
    config = load({**serving, "serve": {"port": 0, "name": name}})

    async def main(ready: Callable[[Any], None], stop: asyncio.Event) -> None:
        async with listening(
            config, root, record=True, bundle=bundle, keys={"agent": os.environ["AGENT_API_KEY"]}
        ) as server:
            ready(server)
            await stop.wait()

    with in_thread(main) as server:
        success = played(agent(f"{server.url}/v1", "r2v", "AGENT_API_KEY"), split, tasks, root / f"agent-{name}")
    turns = [row for row in read_traffic(server.folder) if row["kind"] == "turn"]
    return success, fmean(row["source"] == "llm" for row in turns)


def _r2v(root: Path, *words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "r2v", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"r2v {' '.join(words)}: {done.stderr[-2000:]}")
    return done.stdout + done.stderr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=60, help="recorded, and played afterwards (default: 60)")
    values = parser.parse_args()
    os.environ |= {"OPENAI_API_KEY": "sk-emulated", "AGENT_API_KEY": "k" * 20, "PYTHONPATH": str(Path.cwd())}
    for name in SMALLS:
        measure(name, values.tasks)


if __name__ == "__main__":
    main()
