"""Stage 5a, case support: an index of the recorded steps that the policy was cloned from, for the router.

    r2v fit_case_support --config configs/mrp.yaml

Part of the chain if a router reads it: `cases` among `router.features`, or `router.model=case_support`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from r2v.data.tools import TOOLS_FILE, read_tools
from r2v.log import logger
from r2v.stages import Stage
from r2v.stages.train_policy import TASKS
from r2v.storage.artifact import Work


@dataclass(frozen=True, kw_only=True)
class CaseSupportSettings:
    """Settings of the case index."""

    seed: int
    """Seed of the draw of steps, if there are more than an index holds."""


def run(cfg: CaseSupportSettings, work: Work) -> None:
    """Fit the index on the recorded steps of the tasks that the policy was cloned from, or of all without a clone."""
    from r2v.data.store import StoredEpisodes
    from r2v.policy.training_tools import tool_specs
    from r2v.router.case_support import CaseIndex, recorded_steps

    recorded = work.inputs["perturb"]
    cloned = set(json.loads(work.inputs["bc"].file(TASKS).read_text())) if "bc" in work.inputs else None
    episodes = StoredEpisodes(
        recorded.file("trajectories.jsonl"),
        keep=lambda episode: cloned is None or episode.metadata.task_id in cloned,
    )
    tools = tool_specs(read_tools(recorded.file(TOOLS_FILE))) if TOOLS_FILE in recorded.files else ()
    index = CaseIndex.of(recorded_steps(episodes), tools, cfg.seed)
    index.save(work.folder)
    work.summary.update(n_steps=len(index.task_of), n_tasks=len(index.tasks), n_terms=len(index.terms))
    logger.info(
        "  case support indexed: steps=%d tasks=%d terms=%d action_signatures=%d",
        *(len(index.task_of), len(index.tasks), len(index.terms), len(index.signatures)),
    )


STAGE = Stage(version=1, settings=CaseSupportSettings, run=run)
