"""`configs/swebench/noisy.yaml` itself through all ten stages; only tasks, sizes, model and endpoints differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from examples.hub_models import hub_model
from r2v.cli.main import main
from r2v.emulator import Emulator
from r2v.emulator.answers import first_of
from r2v.envs.swe.recipes import recipes
from tests.envs.swe.made import graded, walls
from tests.envs.swe.test_recipes import installed
from tests.llm.talk import environment
from tests.seeds.workspace import REPOSITORY, standing_in

SMALL = [
    "env.options.dataset=bundled",
    "data.num_episodes=8",
    "data.seeds=[1]",
    "policy.lora_r=8",
    "policy.max_seq_len=1024",
    "policy.device=cpu",
    "training.num_epochs=1",
    "training.bc.max_examples=8",
    "inference.max_steps=5",
    "inference.max_new_tokens=12",
    "verifier.num_tasks=8",
    "candidates.num_samples=2",
    "candidates.num_tasks=2",
    "candidates.num_folds=2",
    "router.num_tasks=2",
    "router.num_calibration_tasks=2",
    "evaluation.num_tasks=2",
    "evaluation.gains_tasks=1",
    "evaluation.bootstrap=50",
    "ablations.names=[none]",
    "teacher.preflight=false",
    "teacher.flush_seconds=0.2",
    "teacher.poll_seconds=0.05",
    "verifier.mode=llm_judge",
    "anyway=true",  # so small a policy learns nothing, where a user would be stopped before paying
]


@walls
@graded
@installed
@pytest.mark.whole
def test_the_shipped_configuration_ends_well_on_bundled_instances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = hub_model("llama", tmp_path / "model", [recipe.problem_statement for recipe in recipes()])
    config = str(REPOSITORY / "configs/swebench/noisy.yaml")
    with standing_in(tmp_path), Emulator(answer=first_of(["judge", "swebench"])) as emulator:
        for name, value in environment(emulator).items():
            monkeypatch.setenv(name, value)
        assert main(["run", "--config", config, "--overrides", *SMALL, f"policy.model_name={model}"]) == 0
        assert "stages_run=10/10" in "".join(capsys.readouterr())
        assert main(["verify-results", "results/swebench_noisy"]) == 0
    log = next((tmp_path / "data/runs").glob("swebench_anthropic_*/collection_log.jsonl"))
    assert all(json.loads(line)["success"] for line in log.read_text().splitlines()), "the teacher knows the patches"
