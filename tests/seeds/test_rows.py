"""Every fenced block of the seed has somebody who runs it, or a reason why that is not here."""

from __future__ import annotations

import hashlib

from . import seed

RUN_BY = {
    "3. Quick Validation (MRP)": "make mrp, and test_training",
    "Run ID format": "test_registry",
    "Directory structure": "test_collect",
    "Collect data for a specific model": "test_collect",
    "Inspect the registry": "test_registry",
    "Combine datasets from multiple models": "test_registry",
    "Resume a partial run": "test_collect",
    "Check pipeline progress": "test_training",
    "Structured results for LLM paper writing": "test_results",
    "Generate LaTeX tables": "test_results",
    "Common issues": "test_training",
    "Useful debug commands": "test_training",
    "Config Overrides": "test_training",
}
SLURM = "a Slurm job: with the scripts of scripts/slurm"
ELSEWHERE = {
    "2. Environment Setup": "installing: make and .ci/run do it",
    "Configure wandb (optional but recommended)": "wandb's own commands",
    "Configure API keys (if using LLM-judge verifier)": "a provider's keys",
    "4. Full Pipeline": SLURM,
    "Collect teacher trajectories": SLURM,
    "Generate perturbations": SLURM,
    "Train policy": SLURM,
    "Train verifier": SLURM,
    "Generate candidates for DPO": SLURM,
    "Generate router features": SLURM,
    "Train router": SLURM,
    "Evaluate": SLURM,
    "Run ablations": SLURM,
    "7. Monitoring Jobs": SLURM,
    "Download results to local machine": "scp",
}


def test_the_copy_is_the_seed() -> None:
    assert hashlib.sha256(seed.TEXT.encode()).hexdigest() == seed.SHA256


def test_every_block_is_somebodys() -> None:
    assert RUN_BY.keys() & ELSEWHERE.keys() == set()
    assert [*dict.fromkeys(block.heading for block in seed.BLOCKS if block.heading not in ELSEWHERE)] == [*RUN_BY]
    assert {block.heading for block in seed.BLOCKS} == RUN_BY.keys() | ELSEWHERE.keys()
