"""`configs/miniwob/*.yaml` through all ten stages in a real Chromium; only tasks, sizes and model differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from examples.hub_models import hub_model
from r2v.cli.main import main
from r2v.config import PerturbationsConfig
from r2v.data.store import StoredEpisodes
from tests import trust
from tests.envs.browser import real_browser
from tests.seeds.workspace import REPOSITORY, standing_in

SLICE = [
    "env.options.names=click-test click-button",
    "env.options.instances=6",
    "data.num_episodes=4",
    "data.seeds=[1]",
    "teacher.provider=scripted",
    "policy.lora_r=8",
    "policy.max_seq_len=1024",
    "policy.device=cpu",
    "training.num_epochs=1",
    "training.bc.max_examples=8",
    "inference.max_steps=2",
    "inference.max_new_tokens=12",
    "verifier.num_tasks=3",
    "verifier.num_corruptions=1",
    "candidates.num_samples=1",
    "candidates.num_tasks=2",
    "router.num_tasks=2",
    "router.num_calibration_tasks=1",
    "evaluation.methods=[slm_only,llm_only,r2v]",
    "evaluation.seeds=[1]",
    "evaluation.num_tasks=1",
    "evaluation.oracle_tasks=0",
    "evaluation.frontier_tasks=0",
    "evaluation.gains_tasks=1",
    "evaluation.bootstrap=50",
    "rollout.max_conversations=1",  # one browser a stage
    "ablations.names=[none]",
    "ablations.seeds=[1]",
]
WHOLE = [
    *SLICE,
    "env.options.names=click-test enter-text login-user",
    "env.options.instances=16",
    "data.num_episodes=16",
    "inference.max_steps=4",
    "verifier.num_tasks=6",
    "candidates.num_samples=2",
    "candidates.num_tasks=4",
    "router.num_tasks=6",
    "router.num_calibration_tasks=3",
    "evaluation.methods=[slm_only,llm_only,entropy_router,oracle_router,r2v]",
    "evaluation.num_tasks=4",
    "evaluation.oracle_tasks=1",
    "evaluation.frontier_tasks=1",
    "evaluation.budgets=[0.2]",
    "rollout.max_conversations=3",
]


def run_and_verify(folder: Path, condition: str, sizes: list[str], capsys: pytest.CaptureFixture[str]) -> Path:
    """Run the ten stages and audit their artifacts, in a folder of their own; return the results."""
    model = hub_model("llama", folder / "model", ['{"tool":"click","bid":"12"}'])
    config = str(REPOSITORY / "configs/miniwob" / f"{condition}.yaml")
    with standing_in(folder):
        assert main(["run", "--config", config, "--overrides", *sizes, f"policy.model_name={model}"]) == 0
        assert "stages_run=10/10" in "".join(capsys.readouterr())
        assert main(["verify-results", f"results/miniwob_{condition}"]) == 0
        assert "replayed with the recorded results" in "".join(capsys.readouterr())
    log = next((folder / "data/runs").glob("miniwob_scripted_*/collection_log.jsonl"))
    assert all(json.loads(line)["success"] for line in log.read_text().splitlines()), "the experts know these tasks"
    return folder / f"results/miniwob_{condition}"


@real_browser
def test_the_shipped_configuration_ends_well_in_a_real_browser(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_and_verify(tmp_path, "clean", WHOLE if trust.whole_suites else SLICE, capsys)


@real_browser
@pytest.mark.whole
def test_the_noisy_configuration_ends_well_with_every_perturbation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    every = [f"perturbations.{name}.prob=0.3" for name in PerturbationsConfig.categories()]
    every += ["perturbations.renumbered_dom.prob=1"]  # applied last, and only to pages without another perturbation
    results = run_and_verify(tmp_path, "noisy", [*WHOLE, *every], capsys)
    files = [path for path in (results / "episodes").rglob("*.jsonl*") if path.is_file()]
    steps = [step for path in files for episode in list(StoredEpisodes(path)) for step in episode.steps]
    assert {mark.category for step in steps for mark in step.perturbations} == set(PerturbationsConfig.categories())
