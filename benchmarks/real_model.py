"""A real pretrained model through all ten stages with adapters: SmolLM2-135M-Instruct on desk, on a CPU, in hours.

    python benchmarks/real_model.py --work DIR               # resumes where the last call stopped
    python benchmarks/real_model.py --work DIR --minutes 90  # stops after the stage running at that time

The weights are those of examples/hub_models.py. Printed: success of the base, the clone and the routed policy as
executed, and the CPU hours of each stage.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY))

from examples.hub_models import smollm2  # noqa: E402
from r2v.report.console import main_table  # noqa: E402

STAGES = (
    "collect",
    "perturb",
    "train_policy --stage bc",
    "train_verifier",
    "generate_candidates",
    "train_policy --stage preference",
    "generate_router_features",
    "train_router",
    "evaluate",
    "ablations",
)


def configuration(model: Path, work: Path) -> Path:
    """Write the configuration: small sizes, as two CPU cores play and train a model 600 times the bundled one."""
    path = work / "config.yaml"
    path.write_text(
        json.dumps(  # which is YAML
            {
                "prefix": "smollm2",
                "policy": {"model_name": str(model), "lora_r": 16, "max_seq_len": 1024},
                "data": {"num_episodes": 60, "seeds": [1]},
                "training": {
                    "lr": 2e-4,
                    "num_epochs": 2,
                    "batch_size": 4,
                    "gradient_accumulation_steps": 2,
                    "save_steps": 5,
                    "bc": {"max_examples": 80},
                    "preference": {"num_epochs": 1, "lr": 2e-5},
                    "verifier": {"num_epochs": 1, "lr": 2e-4, "max_examples": 24},
                },
                "inference": {"max_new_tokens": 64, "max_steps": 10},
                "verifier": {"num_tasks": 4},
                "candidates": {"num_samples": 3, "num_tasks": 3, "num_folds": 2},
                "router": {"num_tasks": 4, "num_calibration_tasks": 3},
                "evaluation": {
                    "num_tasks": 8,
                    "seeds": [1],
                    "conditions": ["noisy"],
                    "methods": ["slm_only", "llm_only", "slm_base", "slm_bc_only", "entropy_router", "r2v"],
                    "budgets": [],
                },
                "ablations": {"names": ["none"], "seeds": [1]},
                "rollout": {"batch_size": 8},
            },
            indent=1,
        )
    )
    return path


def run_stages(config: Path, work: Path, minutes: float) -> bool:
    """Run the stages; True if all are done. CPU seconds of each are added to cpu.json over the calls."""
    begun, spent_at = time.monotonic(), work / "cpu.json"
    spent: dict[str, float] = json.loads(spent_at.read_text()) if spent_at.exists() else {}
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1"}
    for stage in STAGES:
        if time.monotonic() - begun > 60 * minutes:
            return False
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "r2v", *stage.split(), "--config", str(config)]
        done = subprocess.run(command, cwd=work, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        spent[stage] = spent.get(stage, 0.0) + cpu_seconds
        spent_at.write_text(json.dumps(spent, indent=1))
        if done.returncode:
            sys.exit(f"real_model: {stage} ended with exit code {done.returncode}")
    return True


def main() -> None:
    """Resume the stages; print the table when all are done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="folder of all files")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no stage after this time; default: no limit")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    work = given.work.resolve()
    if not run_stages(configuration(smollm2(work / "SmolLM2-135M-Instruct"), work), work, given.minutes):
        print("real_model: stages remain; repeat the command to resume")
        return
    print(main_table(work / "results/smollm2/structured_results/main_table.csv"))
    spent = json.loads((work / "cpu.json").read_text())
    print("".join(f"\n{stage:<34} {seconds / 3600:6.3f} CPU-h" for stage, seconds in spent.items()))
    print(f"{'all':<34} {sum(spent.values()) / 3600:6.3f} CPU-h")


if __name__ == "__main__":
    main()
