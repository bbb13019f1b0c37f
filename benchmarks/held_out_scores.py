"""Calibration and ranking of r2v's router on calibration tasks that it was neither fitted nor scaled on.

    python -m benchmarks.held_out_scores outputs/.artifacts/router_features-*/router_features.jsonl

For each file of router features (one per student) the calibration tasks are cut into two halves; the router is fitted
on the training tasks and Platt's two numbers on one half, and the other half is scored; then the halves are swapped.
Printed: ECE (15 bins), the Brier score beside that of the base rate, and AUROC of "the LLM's step gains here" over all
states and over those that can still be saved; for the latter, entropy's AUROC too. Kept in
benchmarks/outcomes/held_out_scores.jsonl.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from r2v.config import RouterConfig
from r2v.router.labels import FeatureRow, labelled, read_rows
from r2v.router.training import fit_routers
from r2v.storage.files import write_lines
from r2v.verifier.scores import auroc, brier, ece

OUTCOMES = Path("benchmarks/outcomes/held_out_scores.jsonl")
ENTROPY = "uncertainty.entropy_max"


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Of a student's held-out states: calibration of the router, and AUROCs of router and entropy."""

    states: int
    ece: float
    brier: float
    brier_constant: float
    router: float | None
    entropy: float | None
    savable: int
    router_savable: float | None
    entropy_savable: float | None


def held_out(rows: Sequence[FeatureRow], cfg: RouterConfig, seed: int = 0) -> HeldOut:
    """Return scores of every calibration task by a router that has not seen it."""
    labels = labelled(rows, "counterfactual", cfg.canary_price)
    train = [row for row in labels if row.split == "train"]
    tasks = sorted({row.task_id for row in labels if row.split == "calibration"})
    scored: list[tuple[FeatureRow, float]] = []
    for half in (tasks[::2], tasks[1::2]):
        calibrates = [row for row in labels if row.split == "calibration" and row.task_id not in half]
        model, _ = fit_routers([*train, *calibrates], cfg, seed)
        scored += [(row, model.predict(row.features)) for row in labels if row.task_id in half]
    y, p = [float(row.y_escalate or 0) for row, _ in scored], [score for _, score in scored]
    doubt = [row.features[ENTROPY] for row, _ in scored]
    can = [number for number, (row, _) in enumerate(scored) if (row.q_llm or 0) > 0]

    def among(values: Sequence[float]) -> list[float]:
        return [values[number] for number in can]

    return HeldOut(
        states=len(scored),
        ece=ece(p, y),
        brier=brier(p, y),
        brier_constant=fmean(y) * (1 - fmean(y)),
        router=auroc(p, y),
        entropy=auroc(doubt, y),
        savable=len(can),
        router_savable=auroc(among(p), among(y)),
        entropy_savable=auroc(among(doubt), among(y)),
    )


def table(path: Path = OUTCOMES) -> list[str]:
    """Return a row for each student. Raises FileNotFoundError if none was scored."""
    heads = "student | states | ECE | Brier | of the base rate | AUROC | entropy | savable | AUROC there | entropy"
    rows = [f"| {heads} |", "|" + "---|" * 10]
    for number, line in enumerate(path.read_text().splitlines()):
        scores = HeldOut(**json.loads(line))
        figures = [scores.ece, scores.brier, scores.brier_constant, scores.router, scores.entropy]
        there = [scores.router_savable, scores.entropy_savable]
        texts = ["" if figure is None else f"{figure:.3f}" for figure in (*figures, *there)]
        rows.append(
            f"| {number} | {scores.states} | {' | '.join(texts[:5])} | {scores.savable} | {' | '.join(texts[5:])} |"
        )
    return rows


def main() -> None:
    """Score each file, keep the figures, and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", help="of the students, in the order of their seeds")
    parser.add_argument("--model", default="boosting", help="default: %(default)s")
    arguments = parser.parse_args()
    scored = [
        held_out(read_rows(path), RouterConfig(model=arguments.model), seed)
        for seed, path in enumerate(arguments.files)
    ]
    write_lines(OUTCOMES, (json.dumps(asdict(scores)) for scores in scored))
    print("\n".join(table()))


if __name__ == "__main__":
    main()
