"""What a refusal advises can be typed: options of `r2v plan`, or keys of the configuration."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from r2v.config import load
from r2v.memory.configured import job_of_hierarchical
from r2v.memory.planner.planner import plan
from r2v.memory.planner.remedies import remedies
from r2v.memory.planner.training_job import Machine, TrainingJob
from r2v.memory.shapes import shape_of
from r2v.memory.sizes import GIB

FUSED_ALONE = 36.5
"""GiB on which FULL fits with the fused optimizer alone."""
FULL = TrainingJob(stage="hierarchical", model=shape_of("Llama-3.2-1B"), lora_rank=0, precision="float32")


def told(job: TrainingJob, size: float) -> list[str]:
    found = plan(job, Machine(memory=size * GIB, gpus=1))
    assert not found.fits
    return remedies(found)


def test_an_optimizer_is_advised_by_its_key_and_the_key_does_it() -> None:
    advised = [line for line in told(FULL, FUSED_ALONE) if "temporaries" in line]
    assert len(advised) == 1 and "(hierarchical.optimizer=adamw_fused)" in advised[0]
    found = re.search(r"\((hierarchical\.\S+)\)", advised[0])
    assert found is not None
    config = load(None, ["policy.model_name=Llama-3.2-1B", found[1]])
    assert job_of_hierarchical(config.policy, config.hierarchical).optimizer == "adamw_fused"


@pytest.mark.parametrize("stage", ["bc", "preference"])
def test_a_stage_without_a_choice_of_optimizers_is_advised_none(stage: str) -> None:
    job = replace(FULL, stage=stage, critic=None)  # type: ignore[arg-type]
    assert not [line for line in told(job, 8) if "optimizer" in line]
