"""Cost estimates against the bill: a small run on the emulator predicts a larger one with other seeds.

    python -m benchmarks.estimates --folder /tmp/estimates                       # desk, babyai x openai, anthropic
    python -m benchmarks.estimates --folder /tmp/estimates --only desk openai --times 4

On the desk a student is trained and the LLM is a provider's; on BabyAI (extra [babyai]) both models are a provider's,
and the router reads case support. The small run has about 20 tasks, the larger one `--times` as many under other seeds.
A row for each paid stage: the likely dollars beforehand, the dollars paid, the bound. Exit code 1 if the total is off
by a factor above 1.5, a stage that costs more than a cent by one above 2, or the payment exceeds the bound.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from r2v.cli.main import main as r2v
from r2v.config import Config, load
from r2v.console import text_table
from r2v.emulator import EmulatedRequest, Emulator, Lifecycle
from r2v.emulator.answers import Answer
from r2v.envs.base import Demonstrated, load_benchmark
from r2v.llm.types import Request
from r2v.pipeline.graph import selection
from r2v.pipeline.plan.benchmark_facts import facts_here
from r2v.pipeline.plan.dry_run import PlannedWork, planned_jobs
from r2v.pipeline.plan.likely import billed_here
from r2v.pipeline.plan.wall import Allotted
from r2v.randomness import uniform
from r2v.wire.message import Message

MODELS = {"openai": ("gpt-5.2", "gpt-5-nano"), "anthropic": ("claude-sonnet-5-5", "claude-haiku-4-5")}
"""Large, small."""
SLIPS, STUCK = 0.15, 0.97
"""Shares of its actions in which the small model slips, and slips once more: it stops too early, or waits."""
_CENT = 0.01


def answer_of(benchmark: str, small: str) -> Answer:
    """Return the emulated models of a benchmark: its expert, from which the small model deviates now and then."""
    loaded = load_benchmark(benchmark, {})
    assert isinstance(loaded, Demonstrated)

    def answer(request: EmulatedRequest) -> str:
        history = as_history(request.messages)
        slip = '{"tool":"done"}' if benchmark == "desk" else '{"tool":"wait"}'
        stuck = len(history) > 2 and history[-2].text == slip
        slips = SLIPS if not stuck else STUCK
        if len(history) < 2 or (request.model == small and uniform("slips", *request.key) < slips):
            return slip
        return str(loaded.expert(Request(messages=history, key=request.key)))

    return answer


def as_history(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the goal, then pages and actions in their roles: a provider knows only user and assistant."""
    dialogue = [message for message in messages if message.role != "system"]
    goal, _, page = dialogue[0].text.partition("\n\n")
    first = [Message(role="user", content=goal), *([Message(role="tool", content=page)] if page else [])]
    rest = [
        Message(role="assistant" if message.role == "assistant" else "tool", content=message.text)
        for message in dialogue[1:]
    ]
    return (*first, *rest)


def overrides(benchmark: str, provider: str, *, times: int, seed: int, prefix: str) -> list[str]:
    """Return the overrides of a run `times` as large as the small one."""
    large, small = MODELS[provider]
    common = (
        f"prefix={prefix} env.benchmark={benchmark} teacher.provider={provider} teacher.model_name={large} "
        "teacher.max_tokens=64 teacher.mode=concurrent teacher.max_usd=500 evaluation.conditions=[noisy] "
        f"evaluation.bootstrap=50 logging.report=false data.num_episodes={20 * times} data.seeds=[{seed}] "
        f"router.num_tasks={8 * times} router.num_calibration_tasks={6 * times} router.rounds=1 "
        f"router.round_tasks={4 * times} router.seeds=[{seed}] evaluation.num_tasks={6 * times} "
        f"evaluation.seeds=[{seed}] evaluation.oracle_tasks=0 evaluation.gains_tasks={2 * times} "
        "evaluation.budgets=[0.2]"
    )
    if benchmark == "desk":
        own = (
            f"verifier.label_sources=[corrupted] verifier.num_tasks={6 * times} candidates.num_tasks={3 * times} "
            "training.num_epochs=12 training.bc.max_examples=1200 preference.accept_tasks=4 "
            "evaluation.methods=[slm_only,llm_only,random_router,entropy_router,r2v]"
        )
    else:
        own = (
            f"policy.provider={provider} policy.model_name={small} policy.api.max_tokens=64 inference.max_steps=30 "
            "router.features=[progress,page,tool,cases] "
            "evaluation.methods=[slm_only,llm_only,random_router,task_router,disagreement_router,r2v]"
        )
    return f"{common} {own}".split()


def planned(config: Config) -> list[PlannedWork]:
    names = [row.name for row in selection(config, without=["ablations"])[0]]
    return planned_jobs(config, facts_here(config), dict.fromkeys(names, Allotted()), Path())


def measured(benchmark: str, provider: str, times: int) -> bool:
    """Run both and print the table; True if every bound holds."""
    small = overrides(benchmark, provider, times=1, seed=1, prefix="pilot")
    full = overrides(benchmark, provider, times=times, seed=2, prefix="full")
    words = ["run", "--without", "ablations", "--overrides", "anyway=true"]
    assert r2v([*words, *small]) == 0
    before, jobs = {run.name for run in billed_here(Path())}, planned(load(None, full))
    assert r2v([*words, *full]) == 0
    paid = dict[str, float]()
    for run in billed_here(Path()):
        if run.name not in before:
            paid[run.job] = paid.get(run.job, 0.0) + run.usd
    rows, good = [("stage", "likely $", "paid $", "at most $", "paid / likely")], True
    for job in jobs:
        likely, cost, bound = job.likely.usd if job.likely else 0.0, paid.get(job.name, 0.0), job.usd or 0.0
        if not likely and not cost:
            continue
        off = cost / likely if likely else float("inf")
        good = good and cost <= bound and (cost < _CENT or 0.5 <= off <= 2)
        rows.append((job.name, f"{likely:.3f}", f"{cost:.3f}", f"{bound:.2f}", f"{off:.2f}"))
    likely, cost = sum(job.likely.usd for job in jobs if job.likely), sum(paid.values())
    bound = sum(job.usd or 0.0 for job in jobs)
    rows.append(("all", f"{likely:.3f}", f"{cost:.3f}", f"{bound:.2f}", f"{cost / likely:.2f}"))
    good = good and cost <= bound and 1 / 1.5 <= cost / likely <= 1.5
    print(f"\n{benchmark}, {provider}, {times} times a run of 20 tasks: {'holds' if good else 'MISSED'}")
    print(text_table(rows, right=range(1, 5)), flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="folder of the runs; made again for each row")
    parser.add_argument("--only", nargs=2, metavar=("BENCHMARK", "PROVIDER"), help="one row (default: all four)")
    parser.add_argument("--times", type=int, default=10, help="size of the second run over the first (default: 10)")
    values = parser.parse_args()
    cases = [tuple(values.only)] if values.only else [(b, p) for b in ("desk", "babyai") for p in MODELS]
    good = True
    for benchmark, provider in cases:
        folder = values.folder / f"{benchmark}-{provider}"
        folder.mkdir(parents=True)
        os.chdir(folder)
        answer = answer_of(benchmark, MODELS[provider][1])
        with Emulator(answer=answer, lifecycle=Lifecycle(polls=1)) as emulator:
            os.environ.update(
                OPENAI_API_KEY="sk-emulated-0123456789",
                ANTHROPIC_API_KEY="sk-ant-emulated-0123456789",
                OPENAI_BASE_URL=emulator.openai_url,
                ANTHROPIC_BASE_URL=emulator.anthropic_url,
            )
            good = measured(benchmark, provider, values.times) and good
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
