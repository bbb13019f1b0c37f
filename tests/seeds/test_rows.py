"""Every fenced block of the seed has a test that runs it, or a reason why there is none."""

from __future__ import annotations

import hashlib

from . import seed

RUN_BY = {
    "3. Quick Validation (MRP)": "make mrp, test_training and test_slurm",
    "4. Full Pipeline": "test_slurm",
    "Collect teacher trajectories": "test_slurm",
    "Generate perturbations": "test_slurm",
    "Train policy": "test_slurm",
    "Train verifier": "test_slurm",
    "Generate candidates for DPO": "test_slurm",
    "Generate router features": "test_slurm",
    "Train router": "test_slurm",
    "Evaluate": "test_slurm",
    "Run ablations": "test_slurm",
    "Run ID format": "test_registry",
    "Directory structure": "test_collect",
    "Collect data for a specific model": "test_collect",
    "Inspect the registry": "test_registry",
    "Combine datasets from multiple models": "test_registry",
    "Resume a partial run": "test_collect",
    "7. Monitoring Jobs": "test_slurm",
    "Check pipeline progress": "test_training and test_slurm",
    "Structured results for LLM paper writing": "test_results",
    "Generate LaTeX tables": "test_results",
    "Common issues": "test_training",
    "Useful debug commands": "test_training",
    "Config Overrides": "test_training",
}
ELSEWHERE = {
    "2. Environment Setup": "installing: make and .ci/run do it",
    "Configure wandb (optional but recommended)": "wandb's own commands",
    "Configure API keys (if using LLM-judge verifier)": "a provider's keys",
    "Download results to local machine": "scp",
}


def test_the_copy_is_the_seed() -> None:
    assert hashlib.sha256(seed.TEXT.encode()).hexdigest() == seed.SHA256


def test_every_block_is_somebodys() -> None:
    assert RUN_BY.keys() & ELSEWHERE.keys() == set()
    assert [*dict.fromkeys(block.heading for block in seed.BLOCKS if block.heading not in ELSEWHERE)] == [*RUN_BY]
    assert {block.heading for block in seed.BLOCKS} == RUN_BY.keys() | ELSEWHERE.keys()
