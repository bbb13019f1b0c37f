"""The configurations that the seed's lines name load, and clean differs from noisy in its conditions only."""

from __future__ import annotations

from dataclasses import replace

import pytest

from r2v.config import load
from r2v.data.manifest import run_prefix

from .workspace import REPOSITORY

BENCHMARKS = ("desk", "miniwob", "swebench", "webarena")
TEACHERS = {
    "desk": "desk_scripted_expert_",
    "miniwob": "miniwob_openai_gpt-6.1-terra_",
    "swebench": "swebench_anthropic_claude-sonnet-5-5_",
    "webarena": "webarena_openai_gpt-6.1-terra_",
}


def test_every_benchmark_has_both() -> None:
    assert {str(path.relative_to(REPOSITORY / "configs")) for path in (REPOSITORY / "configs").glob("*/*.yaml")} >= {
        f"{name}/{condition}.yaml" for name in BENCHMARKS for condition in ("clean", "noisy")
    }


@pytest.mark.parametrize("name", BENCHMARKS)
def test_clean_and_noisy_are_twins(name: str) -> None:
    clean, noisy = (load(REPOSITORY / "configs" / name / f"{condition}.yaml") for condition in ("clean", "noisy"))
    assert (clean.env.benchmark, clean.data.condition, noisy.data.condition) == (name, "clean", "noisy")
    assert clean.evaluation.conditions == ["clean"] and "noisy" in noisy.evaluation.conditions
    assert run_prefix(name, clean.teacher.provider, clean.teacher.model_name) == TEACHERS[name]
    spared = replace(
        noisy,
        perturbations=clean.perturbations,
        data=clean.data,
        evaluation=replace(noisy.evaluation, conditions=["clean"]),
    )
    assert spared == clean and replace(noisy.data, condition="clean") == clean.data


@pytest.mark.parametrize("name", ["swebench", "webarena"])
def test_a_large_policy_is_adapted_not_trained_whole(name: str) -> None:
    config = load(REPOSITORY / "configs" / name / "noisy.yaml")
    assert config.policy.model_name == "meta-llama/Llama-3.1-8B-Instruct"
    assert (config.policy.lora_r, config.policy.effective_lora_alpha, config.policy.load_in_4bit) == (64, 128, "auto")
    assert (config.training.phase("bc").lr, config.training.phase("preference").lr) == (2e-5, 5e-6)
