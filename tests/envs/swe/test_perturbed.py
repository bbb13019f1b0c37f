"""Every perturbation on SWE-bench's own pages, compared with recorded ones (`perturbed_pages.json`)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from r2v.config import CategoryConfig, PerturbationsConfig
from r2v.envs.base import load_benchmark
from r2v.perturb import wrap
from tests.envs.swe.made import bash, dataset, graded, walls

GOLDEN = Path(__file__).with_name("perturbed_pages.json")
COMMANDS = ("cat -n total.py", "grep -n total total.py", "ls -l", "ls -l")


def perturbed(folder: Path, category: str) -> dict[str, object]:
    """Play a few commands with one perturbation at every step; return the goal and the pages that the agent sees."""
    benchmark = load_benchmark("swebench", {"dataset": str(dataset(folder)), "command_seconds": 20})
    probs = {name: CategoryConfig(prob=float(name == category)) for name in PerturbationsConfig.categories()}
    config = PerturbationsConfig(**probs, held_out=[])  # type: ignore[arg-type]
    env = wrap(benchmark.make(), benchmark, config, "shift", 901)
    (task,) = benchmark.tasks()
    pages = [env.reset(seed=1, task=task)[0]]
    seconds = 0.0
    for command in COMMANDS:
        page, *_, info = env.step(bash(command))
        pages.append(page)
        seconds += info.sim_seconds
    goal = env.goal
    env.close()
    return {"goal": goal, "pages": pages, "seconds": round(seconds, 3)}


@walls
@graded
@pytest.mark.parametrize("category", PerturbationsConfig.categories())
def test_what_an_agent_sees_is_what_was_recorded(category: str, tmp_path: Path) -> None:
    """`R2V_RECORD=1` records the golden pages again."""
    pages, shown = json.loads(GOLDEN.read_text()), perturbed(tmp_path, category)
    if os.environ.get("R2V_RECORD"):
        GOLDEN.write_text(json.dumps({**pages, category: shown}, indent=1, ensure_ascii=False) + "\n")
    assert shown == json.loads(GOLDEN.read_text())[category]
