"""`configs/webarena/noisy.yaml` itself through all ten stages; only tasks, sizes, model and endpoints differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from examples.hub_models import hub_model
from r2v.cli.main import main
from r2v.emulator import Emulator
from r2v.emulator.answers import first_of
from r2v.envs.webarena.tasks import chosen_tasks
from tests.envs.webarena import real_worlds
from tests.envs.webarena.answers import answer
from tests.envs.webarena.stubs import Stub
from tests.llm.talk import environment
from tests.seeds.workspace import REPOSITORY, standing_in

TASKS = [7, 8, 9, 57, 70, 97, 98, 377, 363, 383, 137, 138, 32, 33, 52]
"""Ten tasks of the training split, two for calibration and three for evaluation, with answers of several kinds."""

SMALL = [
    f"env.options.tasks='{' '.join(map(str, TASKS))}'",
    "env.options.slow_mo=0",
    "data.num_episodes=8",
    "data.seeds=[1]",
    "policy.lora_r=8",
    "policy.max_seq_len=1024",
    "policy.device=cpu",
    "training.num_epochs=1",
    "training.bc.max_examples=8",
    "inference.max_steps=3",
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


@real_worlds
@pytest.mark.whole
@pytest.mark.parametrize("condition", ["noisy", "clean"])
def test_the_shipped_configuration_ends_well_on_stub_sites(
    condition: str, stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = hub_model("llama", tmp_path / "model", [task.goal for task in chosen_tasks(TASKS, None)])
    config = str(REPOSITORY / f"configs/webarena/{condition}.yaml")
    with standing_in(tmp_path), Emulator(answer=first_of(["judge", answer])) as emulator:
        for name, value in environment(emulator).items():
            monkeypatch.setenv(name, value)
        assert main(["run", "--config", config, "--overrides", *SMALL, f"policy.model_name={model}"]) == 0
        assert "stages_run=10/10" in "".join(capsys.readouterr())
        assert main(["verify-results", f"results/webarena_{condition}"]) == 0
        assert main(["webarena", "regrade"]) == 0
        assert "regraded by webarena-verified (not replayed)" in capsys.readouterr().out
    log = next((tmp_path / "data/runs").glob("webarena_openai_*/collection_log.jsonl"))
    ends = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(ends) == 8 and sum(end["success"] for end in ends) >= 6, "the teacher knows the answers"


@real_worlds
def test_a_collection_is_recorded_and_graded_again(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with standing_in(tmp_path), Emulator(answer=answer) as emulator:
        for name, value in environment(emulator).items():
            monkeypatch.setenv(name, value)
        config = str(REPOSITORY / "configs/webarena/clean.yaml")
        small = ["env.options.tasks=[8,98,377]", "env.options.slow_mo=0", "inference.max_steps=2"]
        small += ["teacher.preflight=false", "teacher.mode=concurrent"]
        assert main(["collect", "--config", config, "--num-episodes", "3", "--seeds", "1", "--overrides", *small]) == 0
        assert main(["webarena", "regrade", "--out", "rows.jsonl"]) == 0
    told = capsys.readouterr().out
    assert "3 episodes recorded, " in told and "(not replayed): " in told
    rows = {row["task_id"]: row for row in map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())}
    assert rows["webarena.377"]["live"] == rows["webarena.377"]["regraded"] == 1.0
    recorded = b"".join(path.read_bytes() for path in (tmp_path / "data/webarena/traces").glob("*.json"))
    assert b"127.0.0.1" not in recorded
