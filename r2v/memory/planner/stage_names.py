"""Names of the stages by what they ask of memory: some train, some act, some hold no model of this machine's."""

from __future__ import annotations

from typing import Literal, get_args

ActingStage = Literal["candidates", "router_features", "router", "evaluate", "ablations"]
ACTING_STAGES: tuple[ActingStage, ...] = get_args(ActingStage)
"""Stages that play episodes with the local policy."""
WITHOUT_MODEL = ("collect", "perturb", "case_support")
"""Stages that hold no model: the teacher answers from elsewhere, and an index of its steps is none."""
STAGES = (
    *("collect", "perturb", "bc", "verifier", "candidates", "preference"),
    *("case_support", "router_features", "router", "evaluate", "ablations", "hierarchical"),
)
"""Every stage that makes something, in the order of the pipeline."""
