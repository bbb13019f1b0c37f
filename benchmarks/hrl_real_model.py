"""Hierarchical training of a real pretrained model: SmolLM2-135M with adapters, on sums of two numbers.

    python benchmarks/hrl_real_model.py --work DIR                        # both arms, 30 iterations each, one seed
    python benchmarks/hrl_real_model.py --work DIR --arms full --iterations 3
    python benchmarks/hrl_real_model.py --table --picture docs/images/hrl_real_model   # of the finished arms

Every arm is the command `r2v train_hierarchical`, on sums of two numbers from 1 to 6, in bfloat16 on one CPU core; a
stopped arm resumes. It shows that the path works with a model that reads English, and its curves; with six problems per
iteration it does not measure the method's gain. The weights are those of examples/hub_models.py.

The form of a problem was fixed before any training: of 14 forms of sums, comparisons and maxima, shown to the untrained
model under two instructions, it has the most right sums (of 24: 12 greedily, 4 drawn at temperature 1).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from benchmarks.hrl_study_page import picture  # noqa: E402
from examples.hub_models import smollm2  # noqa: E402

OUTCOMES = REPOSITORY / "benchmarks/outcomes/hrl_real_model.jsonl"
REAL_ARMS = {"full": "5.0e-4", "actor frozen": "1.0e-12"}
"""By arm, the actor's learning rate."""
HELD_OUT = 12


def problems() -> list[dict[str, str]]:
    """Return all sums of two numbers from 1 to 6."""
    return [{"problem": f"What is {a} plus {b}?", "answer": str(a + b)} for a in range(1, 7) for b in range(1, 7)]


def configuration(model: Path, file: Path, arm: str, iterations: int, seed: int) -> dict[str, Any]:
    """Return the configuration of an arm."""
    return {
        "seed": seed,
        "policy": {"model_name": str(model), "lora_r": 8, "dtype": "bfloat16", "device": "cpu", "max_seq_len": 256},
        "inference": {"max_new_tokens": 16},
        "hierarchical": {
            "problems": {
                "path": str(file),
                "checker": "numeric",
                "held_out": HELD_OUT,
                "count": 600,
                "instructions": "Answer with the number alone, without words.",
            },
            "iterations": iterations,
            "episodes": 6,
            "answer_tokens": 14,
            "hint_tokens": 8,
            "rewards": [1.0, 1.0],
            "lr": REAL_ARMS[arm],
            "guidance_lr": "5.0e-4",
            "advantage": "gae",
            "gae_lambda": 1.0,
            "critic": {"lr": 3e-3, "updates": 2, "warmup": 1, "batch_size": 16, "max_tokens": 64, "draws": 0},
            "evaluate_every": iterations,
            "save_every": 2,
            "micro_batch": 24,
        },
    }


def run(arm: str, model: Path, work: Path, iterations: int, seed: int) -> dict[str, Any]:
    """Train an arm to its end, resuming where it stopped, and return its outcome."""
    folder = work / arm.replace(" ", "_")
    folder.mkdir(parents=True, exist_ok=True)
    file, config = work / "sums.jsonl", folder / "config.yaml"
    file.write_text("".join(json.dumps(row) + "\n" for row in problems()))
    config.write_text(json.dumps(configuration(model.resolve(), file.resolve(), arm, iterations, seed)))  # is YAML
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "r2v", "train_hierarchical", "--config", "config.yaml"]
    subprocess.run(command, cwd=folder, env=own, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    [output] = {path.resolve() for path in (folder / "outputs/hierarchical").glob("*") if (path / "final").exists()}
    report = json.loads((output / "hierarchical_report.json").read_text())
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return {
        "arm": arm,
        "seed": seed,
        "iterations": iterations,
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime),
        "untrained": report["untrained"],
        "trained": report["trained"],
        "curve": [[line[f"acc/turn{turn}"] for turn in (1, 2)] for line in lines],
    }


def table(outcomes: list[dict[str, Any]]) -> list[str]:
    """Return Markdown lines: held-out accuracy of both answers before and after, in %."""
    rows = [
        "| arm | iterations | answer 1, untrained | trained | answer 2, untrained | trained | CPU-s |",
        "|---|---|---|---|---|---|---|",
    ]
    for outcome in outcomes:
        cells = [
            f"{100 * outcome[when]['accuracy'][turn]:.1f}" for turn in range(2) for when in ("untrained", "trained")
        ]
        rows.append(f"| {outcome['arm']} | {outcome['iterations']} | {' | '.join(cells)} | {outcome['cpu_s']} |")
    return rows


def main() -> None:
    """Run the arms asked for, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("outputs/hrl_real_model"), help="where it works")
    parser.add_argument("--arms", choices=REAL_ARMS, nargs="+", default=list(REAL_ARMS))
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", type=Path, help="folder of the weights; default: made below --work")
    parser.add_argument("--outcomes", type=Path, default=OUTCOMES)
    parser.add_argument("--table", action="store_true", help="run nothing: print the table of the finished arms")
    parser.add_argument("--picture", type=Path, help="with --table: draw the curves too, as this path and .svg")
    arguments = parser.parse_args()
    if arguments.table:
        outcomes = [json.loads(line) for line in arguments.outcomes.read_text().splitlines()]
        print("\n".join(table(outcomes)))
        if arguments.picture is not None:
            picture(
                [{**outcome, "factor": 1.0, "after": {}} for outcome in outcomes], list(REAL_ARMS), arguments.picture
            )
        return
    model = arguments.model or smollm2(arguments.work / "model")
    for arm in arguments.arms:
        done = run(arm, model, arguments.work, arguments.iterations, arguments.seed)
        with arguments.outcomes.open("a") as file:
            file.write(json.dumps(done, separators=(",", ":")) + "\n")
        print("\n".join(table([done])), flush=True)


if __name__ == "__main__":
    main()
