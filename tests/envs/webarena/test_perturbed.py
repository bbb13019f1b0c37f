"""Every perturbation on pages of WebArena's sites, compared with recorded ones (`perturbed_pages.json`)."""

from __future__ import annotations

import json
import os
from pathlib import Path

from r2v.config import PerturbationsConfig
from r2v.config.tasks import CategoryConfig
from r2v.envs.guard import GuardedEnv
from r2v.envs.webarena.benchmark import WebArena
from r2v.perturb import wrap
from tests.envs.remembered import Remembered
from tests.envs.webarena import real_worlds
from tests.envs.webarena.playing import call
from tests.envs.webarena.stubs import Stub

GOLDEN = Path(__file__).parent / "perturbed_pages.json"
PAGE = "http://gitlab.com/primer/design/-/merge_requests/450"


@real_worlds
def test_every_perturbation_shows_what_was_recorded(stub: Stub) -> None:
    """`R2V_RECORD=1` records the golden pages again. A comment was left before, so the page holds more than its
    form."""
    stub.notes["gitlab/primer/design/-/merge_requests/450"] = [{"Comment": "The contrast of the footer is too low"}]
    benchmark = WebArena(tasks=[389], slow_mo=0, traces="")
    (task,) = benchmark.tasks()
    world = GuardedEnv(benchmark)
    played, pages = Remembered(world), {}
    opened = ("goto", f"url={PAGE}")
    played.reset(seed=5, task=task)
    form = played.step(call("", opened))[0]
    actions = [call("", opened), call(form, ("fill", "bid=[textbox Comment]", "value=x"))]
    for name in PerturbationsConfig.categories():
        off = {other: CategoryConfig(prob=0.0) for other in PerturbationsConfig.categories()}
        config = PerturbationsConfig(**{**off, name: CategoryConfig(prob=1.0)}, held_out=[])
        env = wrap(played, benchmark, config, "noisy", 901)
        shown = [env.reset(seed=5, task=task)[0]]
        for action in actions:
            observation, *_, info = env.step(action)
            shown.append(observation)
            assert info.env_fault is None
        pages[name] = {"goal": getattr(env, "goal", task.goal), "pages": shown, "seconds": info.sim_seconds}
    world.close()
    benchmark.close()
    if os.environ.get("R2V_RECORD"):
        GOLDEN.write_text(json.dumps(pages, indent=1, ensure_ascii=False) + "\n")
    assert pages == json.loads(GOLDEN.read_text())
