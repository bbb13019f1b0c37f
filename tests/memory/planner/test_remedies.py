"""The remedies of a refusal can be typed: options of `r2v plan`, or keys of the configuration."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from r2v.config import load
from r2v.errors import UsageError
from r2v.memory.configured import job_of_hierarchical, job_of_stage
from r2v.memory.measurement import MeasuredCase, MeasuredMemory
from r2v.memory.models import known_model
from r2v.memory.planner.planner import plan
from r2v.memory.planner.remedies import remedies
from r2v.memory.planner.training_job import Machine, StageName, TrainingJob
from r2v.memory.sizes import GIB
from r2v.memory.store import UnmeasurableError
from r2v.pipeline.jobs import JOBS
from tests.memory.measuring import lookup

CODES = {row.name: row.memory for row in JOBS}

FUSED_ALONE = 36.5
"""GiB on which FULL fits only with the fused optimizer."""
FULL = TrainingJob(
    stage="hierarchical",
    code=CODES["hierarchical"],
    model=known_model("Llama-3.2-1B"),
    lora_rank=0,
    precision="float32",
)


def told(job: TrainingJob, size: float) -> list[str]:
    found = plan(job, Machine(memory=size * GIB, gpus=1), lookup)
    assert not found.fits
    return remedies(found)


def test_an_optimizer_is_advised_by_its_key_and_the_key_does_it() -> None:
    advised = [line for line in told(FULL, FUSED_ALONE) if "temporaries" in line]
    assert len(advised) == 1 and "(hierarchical.optimizer=adamw_fused)" in advised[0]
    found = re.search(r"\((hierarchical\.\S+)\)", advised[0])
    assert found is not None
    config = load(None, ["policy.model_name=Llama-3.2-1B", found[1]])
    assert job_of_hierarchical(config.policy, config.hierarchical, "").optimizer == "adamw_fused"


@pytest.mark.parametrize("stage", ["bc", "preference", "verifier"])
def test_8_bit_moments_are_advised_by_their_key_and_the_key_does_it(stage: StageName) -> None:
    fits = replace(FULL, stage=stage, code=CODES[stage], critic=None, optimizer="adamw_8bit")
    size = next(gib for gib in range(8, 40, 4) if plan(fits, Machine(memory=gib * GIB), lookup).fits)
    (advised,) = [line for line in told(replace(fits, optimizer="adamw"), size) if "optimizer" in line]
    found = re.search(r"8-bit moments \((training\.\S+)\)", advised)
    assert found is not None
    config = load(None, ["policy.model_name=Llama-3.2-1B", found[1]])
    assert job_of_stage(config, stage, "").optimizer == "adamw_8bit"


def test_a_change_that_cannot_be_measured_is_no_remedy() -> None:
    """The other remedies are named."""

    def some(case: MeasuredCase) -> MeasuredMemory:
        if case.rank:
            raise UnmeasurableError("adapters do not run on tensors without data")
        return lookup(case)

    found = plan(FULL, Machine(memory=FUSED_ALONE * GIB), some)
    advised = remedies(found)
    assert advised and not any("policy.lora_r=16" in line for line in advised)


def test_an_optimizer_that_a_stage_has_not_is_refused_with_those_that_it_has() -> None:
    with pytest.raises(UsageError, match="--optimizer adamw_8bit: hierarchical is not trained by it; .*adamw_fused"):
        replace(FULL, optimizer="adamw_8bit")
    with pytest.raises(UsageError, match="--optimizer adamw_fused: bc is not trained by it; .*paged_adamw_8bit"):
        replace(FULL, stage="bc", critic=None, optimizer="adamw_fused")
    with pytest.raises(UsageError, match="shards zero3: .*no 8-bit optimizer"):
        job = replace(FULL, stage="bc", critic=None, optimizer="adamw_8bit")
        plan(job, Machine(memory=80 * GIB, gpus=2), lookup, shards="zero3")
