"""Case-support features (group `cases`) of a student's rows, at states that were recorded without them.

The pipeline makes rows of the features that its router reads, and case support is off by default. Here the index is
fitted as `r2v fit_case_support` does it, and each recorded episode is walked again, step by step as it was acted, in a
routing tree: each row gets the index's figures for its own state and proposal, and keeps its other features.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.routing_tree import RoutingTree
from r2v.config import Config
from r2v.data.store import StoredEpisodes
from r2v.data.tools import TOOLS_FILE, read_tools
from r2v.evaluation.acting.methods import MethodRunner
from r2v.pipeline.inputs import published
from r2v.policy.training_tools import tool_specs
from r2v.router.baselines import Instruments
from r2v.router.case_support import CaseIndex, recorded_steps
from r2v.router.labels import FeatureRow, read_rows, write_rows
from r2v.stages.router_settings import RouterFeaturesSettings
from r2v.stages.train_policy import TASKS

GROUP = "cases"
CHUNK = 64
"""Trees in memory at once."""


def case_index(config: Config) -> CaseIndex:
    """Return the index of the steps that the published clone learnt from."""
    recorded, cloned = published(config, "perturb"), json.loads(published(config, "bc").file(TASKS).read_text())
    tasks = set(cloned)
    episodes = StoredEpisodes(
        recorded.file("trajectories.jsonl"), keep=lambda episode: episode.metadata.task_id in tasks
    )
    tools = tool_specs(read_tools(recorded.file(TOOLS_FILE))) if TOOLS_FILE in recorded.files else ()
    return CaseIndex.of(recorded_steps(episodes), tools, config.seed)


def rows_with_cases(runner: MethodRunner, config: Config, rows: Sequence[FeatureRow], path: Path) -> list[FeatureRow]:
    """Return the rows with case-support features, read from `path`, or made and written there."""
    if not path.exists():
        began = time.process_time()
        cfg = RouterFeaturesSettings.of(config)
        specs = {
            runner.world.identity_of(spec): spec
            for split in ("train", "calibration")
            for spec in cfg.specs(runner.world.benchmark, split, method="slm_only")
        }
        episodes: dict[tuple[str, int, float | None], list[FeatureRow]] = {}
        for row in sorted(rows, key=lambda row: (row.round, row.episode_id, row.step_idx)):
            episodes.setdefault((row.episode_id, row.round, row.threshold), []).append(row)
        keys, new_rows = list(episodes), list[FeatureRow]()
        for at in range(0, len(keys), CHUNK):
            walked = [
                partial(_walked, RoutingTree(runner, specs[key[0]]), episodes[key]) for key in keys[at : at + CHUNK]
            ]
            new_rows += [row for of_episode in runner.waves.run(walked) for row in of_episode]
        print(f"case support: {len(new_rows)} rows, {time.process_time() - began:.1f} CPU-s", flush=True)
        write_rows(path, new_rows)
    return read_rows(path)


async def _walked(tree: RoutingTree, rows: Sequence[FeatureRow]) -> list[FeatureRow]:
    """Return the rows of one episode; the LLM acted at the steps that the small policy did not."""
    by_step, new_rows = {row.step_idx: row for row in rows}, list[FeatureRow]()
    node = await tree.root()
    for step in range(max(by_step) + 1):
        act, row = await tree.kept(node), by_step.get(step)
        if row is not None:
            assert node.view is not None and act.proposal is not None
            if act.text != row.proposal:
                raise RuntimeError(f"{row.state_id}: the small policy proposes {act.text}, the row says {row.proposal}")
            measured = await tree.runner.extractor.measure(node.view, act.proposal, Instruments())
            cases = {name: value for name, value in measured.features.items() if name.startswith(f"{GROUP}.")}
            new_rows.append(replace(row, features={**row.features, **cases}))
        node = await tree.below(node, row is not None and row.actor != "slm")
        if node.point is None:
            break
    return new_rows
