"""The seed's training lines: one step, every documented override (C-1), and resuming after a killed job."""

from __future__ import annotations

import json
import math
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from r2v.cli import main as cli
from r2v.config import RolloutConfig, TaskSelection, load
from r2v.data.store import StoredEpisodes
from r2v.envs.base import load_benchmark
from r2v.evaluation.measures.statistics import wilson
from r2v.pipeline.jobs import job
from r2v.policy.load import load_policy
from r2v.rollout.actors import GreedyActor
from r2v.rollout.model_factory import engine, priced_teacher
from r2v.rollout.session import RolloutWorld, episode_specs, play_many
from r2v.storage.artifact import fingerprint
from r2v.storage.paths import Places

from . import seed
from .workspace import checkout, sh, standing_in, typed

OVERRIDDEN = seed.commands(seed.stand_in(seed.block("Config Overrides")))[0]
OVERRIDES = OVERRIDDEN[OVERRIDDEN.index("--overrides") + 1 :]
OUT_OF_MEMORY = seed.commands(seed.block("Common issues"))
RESUME = next(words for words in seed.commands(seed.block("Common issues", index=1)) if "--resume" in words)
BC = Path("outputs/policy/desk_noisy/bc")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a checkout with training data of the small prototype and of the noisy desk."""
    root = checkout(tmp_path_factory.mktemp("training"))
    for config in ("configs/mrp.yaml", "configs/desk/noisy.yaml"):
        collect = sh(root, f"python scripts/collect_trajectories.py --config {config} --num-episodes 4 --seeds 1")
        assert collect.returncode == 0, collect.stderr
        with standing_in(root):
            assert cli.main(["perturb", "--config", config]) == 0
    return root


def _train(root: Path, *words: str) -> dict[str, Any]:
    """Clone on the noisy desk in this process; return the state in the trainer's last checkpoint."""
    with standing_in(root):
        assert cli.main(["train_policy", "--config", "configs/desk/noisy.yaml", "--stage", "bc", *words]) == 0
    return _trained(root / BC)


def _trained(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((folder / "checkpoint-latest" / "trainer_state.json").read_text())
    return state


def _rows(folder: Path) -> int:
    rows: int = json.loads((folder / "bc_report.json").read_text())["n_rows"]
    return rows


def test_a_single_training_step(root: Path) -> None:
    line = seed.commands(seed.stand_in(seed.block("Useful debug commands")))[0]
    done = sh(root, shlex.join(line))
    assert done.returncode == 0, done.stderr
    folder = root / "test_policy" / "bc"
    state, given = _trained(folder), list(StoredEpisodes(root / "data/mrp/trajectories/trajectories.jsonl"))
    assert json.loads((folder / "bc_report.json").read_text())["n_episodes"] == len(given)
    assert (state["train_batch_size"], state["global_step"]) == (1, _rows(folder))
    assert (folder / "final" / "model.safetensors").exists()


def test_the_documented_overrides_reach_what_they_name(root: Path) -> None:
    state, folder = _train(root, *OVERRIDDEN[4:]), root / BC
    config = load(folder / "config.yaml")
    assert (
        config.training.num_epochs,
        config.training.lr,
        config.training.batch_size,
        config.policy.lora_r,
        config.perturbations.prompt_injection.prob,
    ) == (5, 1e-5, 8, 32, 0.2)
    assert state["train_batch_size"] == 8
    assert state["global_step"] == math.ceil(5 * _rows(folder) / 8)
    optimizer = torch.load(folder / "checkpoint-latest" / "optimizer.pt", weights_only=True)
    assert {group["initial_lr"] for group in optimizer["param_groups"]} == {1e-5}
    adapters = load_policy(config.policy, folder / "final").model.peft_config["default"]
    assert (adapters.r, adapters.lora_alpha) == (32, 64)


@pytest.mark.parametrize("prob", [0.2, 0.6])
def test_the_injection_rate_is_measured(prob: float) -> None:
    override = next(words for words in OVERRIDES if "prompt_injection" in words)
    others = [f"perturbations.{name}.prob=0" for name in ("tool_error", "partial_observation", "distractor")]
    config = load(None, [override.replace("0.2", str(prob)), *others, "env.options.num_tasks=120"])
    desk = load_benchmark(config.env.benchmark, config.env.options)
    waves = engine(RolloutConfig(workers=1), desk)
    specs = episode_specs(desk, "train", [1], TaskSelection.training(config), method="teacher", limit=60)
    episodes = play_many(
        waves,
        RolloutWorld(desk, config.perturbations, config.inference),
        specs,
        GreedyActor(priced_teacher(config.teacher, config.cost, desk, waves), "teacher"),
    )
    shown = [step.perturbations for episode in episodes for step in episode.steps]
    low, high = wilson(sum(map(bool, shown)), len(shown), level=0.999)
    assert low < prob < high


def test_an_override_of_an_earlier_stage_is_not_passed_over_in_silence(
    root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    word = "perturbations.prompt_injection.prob=0.6"
    for command in ("train_policy --stage bc", "perturb", "train_policy --stage bc"):
        with standing_in(root):
            assert (
                cli.main(
                    [
                        *command.split(),
                        "--config",
                        "configs/desk/noisy.yaml",
                        "--overrides",
                        word,
                        "training.num_epochs=0.1",
                    ]
                )
                == 0
            )
    told = [line for line in capfd.readouterr().err.splitlines() if "other settings" in line]
    assert told == [
        "  artifact made with other settings: path=data/trajectories/desk_noisy "
        "keys=perturbations.prompt_injection.prob; to apply these, run its own command or `r2v run`"
    ]


def test_less_memory_is_the_same_training(root: Path) -> None:
    smaller = OUT_OF_MEMORY[0][1:]
    assert smaller == ["training.batch_size=2", "training.gradient_accumulation_steps=8"]
    whole, parts = ({"phase": job("bc").load().sections(load(None, words)).phase} for words in ([], smaller))
    assert fingerprint("bc", 1, whole, {}) == fingerprint("bc", 1, parts, {})
    state = _train(root, "--overrides", *smaller, "training.num_epochs=1")
    assert (state["train_batch_size"], state["global_step"]) == (2, math.ceil(_rows(root / BC) / 16))


def test_more_accumulation_is_fewer_updates(root: Path) -> None:
    state = _train(root, *OUT_OF_MEMORY[1])
    assert (state["train_batch_size"], state["global_step"]) == (16, math.ceil(6 * _rows(root / BC) / 256))


def test_four_bits_are_refused_where_they_cannot_be_had(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = _trained(root / BC)
    with standing_in(root):
        code = cli.main(["train_policy", "--config", "configs/desk/noisy.yaml", "--stage", "bc", *OUT_OF_MEMORY[2]])
    assert code == 2 and _trained(root / BC) == before
    assert capfd.readouterr().err.splitlines()[-1] == (
        "r2v: policy.load_in_4bit=true: a bundled model is not quantised; set it to false or auto"
    )


def test_a_killed_job_is_resumed_from_the_path_of_the_seed(root: Path, tmp_path: Path) -> None:
    quick = ["--overrides", "training.batch_size=1", "training.num_epochs=2", "training.save_steps=5", "seed=3"]
    typing = typed(
        root,
        shlex.join(
            ["python", "scripts/train_policy.py", "--config", "configs/desk/noisy.yaml", "--stage", "bc", *quick]
        ),
    )
    (root / BC).unlink(missing_ok=True)
    with subprocess.Popen(**typing, stdout=subprocess.PIPE, start_new_session=True) as process:
        while not (root / BC / "checkpoint-latest").exists() and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()  # until all of it has ended
    assert process.returncode == -signal.SIGKILL and not (root / BC / "artifact.json").exists()
    line = [word.replace("webarena_noisy", "desk_noisy") for word in RESUME]
    with standing_in(root):
        assert cli.main(["train_policy", *line[2:]]) == 0
    assert _trained(root / BC)["global_step"] == 2 * _rows(root / BC)


def test_outputs_are_where_the_seed_looks(root: Path) -> None:
    looked_at = [
        Path(words[2]) for words in seed.commands(seed.block("Check pipeline progress")) if words[:2] == ["ls", "-la"]
    ]
    places = Places(benchmark="webarena", condition="noisy")
    jobs = ("perturb", "bc", "router", "evaluate")
    assert all(
        folder in places.published(str(job(name).place)).parents for folder, name in zip(looked_at, jobs, strict=True)
    )
    for folder in looked_at[:2]:
        assert "desk_noisy" in sh(root, f"ls -la {folder}").stdout
