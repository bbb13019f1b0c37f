"""Recipes of preference training beside each other and the clone, on desk tasks that nothing had read.

    python -m benchmarks.preference        # the table of the pieces in benchmarks/outcomes/preference

A student is configs/mrp.yaml under another seed. From its clone each recipe trained a policy by the product's own
stages, at each learning rate: DPO on pairs valued by the policy playing on (as it was) or by the teacher playing on,
rejection fine-tuning and DAgger on the same states, all with a share of cloned actions rehearsed; and that rehearsal
alone, which measures the gain of mere further training. Each was accepted or rejected by the product's rule, on all
calibration tasks, and in either case played beside the clone on unread tasks, under evaluation's noise. None was
accepted: all but DPO left the package, and so did the code that made these pieces (both are at commit 624d3ee3).

A piece is benchmarks/outcomes/preference/student-<n>.jsonl.zst: the commit, CPU-seconds, and of each policy the outcome
of every task. Intervals are 95 % bootstraps over tasks for one student; for all of them, students are drawn too.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from r2v.console import text_table
from r2v.errors import UsageError
from r2v.evaluation.measures.statistics import FloatArray, minimum_detectable_difference, percentile_interval
from r2v.randomness import seed_of

OUTCOMES = Path("benchmarks/outcomes/preference")
DRAWS = 2000


def read_piece(path: Path) -> list[dict[str, Any]]:
    """Load the lines of a piece: its head, the clone, and every policy."""
    text = zstandard.ZstdDecompressor().decompress(path.read_bytes(), max_output_size=1 << 26).decode()
    return [json.loads(line) for line in text.splitlines()]


def digits(line: dict[str, Any]) -> FloatArray:
    """Return the outcomes of a policy, (tasks,)."""
    return np.array([digit == "1" for digit in line["success"]], float)


def table(pieces: Sequence[Sequence[dict[str, Any]]]) -> list[str]:
    """Return the table of these students, with a verdict on each recipe. Raises UsageError for pieces of different
    tasks."""
    heads = [head for head, *_ in pieces]
    if len({(head["first_task"], len(clone["success"])) for head, clone, *_ in pieces}) > 1:
        raise UsageError("pieces of unlike tasks: make those anew that were played on others")
    students, tasks = len(pieces), len(pieces[0][1]["success"])
    generator = np.random.default_rng(seed_of("preference", students, tasks))
    counts = generator.multinomial(tasks, [1 / tasks] * tasks, size=DRAWS) / tasks
    drawn = generator.integers(students, size=(DRAWS, students))
    rows = [
        ["recipe", "rate", "student", "examples", "updates", "clone", "trained", "difference", "detectable", "outcome"]
    ]
    verdicts = []
    for at, (name, rate) in enumerate((line["recipe"], line["rate"]) for line in pieces[0][2:]):
        lines = [lines[2 + at] for lines in pieces]
        if any((line["recipe"], line["rate"]) != (name, rate) for line in lines):
            raise UsageError(f"{name} at {rate}: a piece holds other recipes: make it anew")
        gains = np.stack([digits(line) - digits(piece[1]) for line, piece in zip(lines, pieces, strict=True)])
        accepted = np.array([line["acceptance"]["accepted"] for line in lines])
        for head, line, piece, gain in zip(heads, lines, pieces, gains, strict=True):
            acceptance = "accepted" if line["acceptance"]["accepted"] else "thrown away"
            trained_on = [str(line["examples"]), str(line["updates"])]
            success = [f"{digits(piece[1]).mean():.3f}", f"{digits(line).mean():.3f}"]
            own = _lead(gain.mean(), counts @ gain)
            rows.append([name, rate, str(head["student"]), *trained_on, *success, *own, acceptance])
        draws = np.take_along_axis(gains @ counts.T, drawn.T, axis=0).mean(axis=0)
        executed = _lead(gains.mean(), draws)
        rows.append([name, rate, "all", "", "", "", "", *executed, f"{accepted.sum()} of {students} accepted"])
        published_gains = gains * accepted[:, None]
        published_draws = np.take_along_axis(published_gains @ counts.T, drawn.T, axis=0).mean(axis=0)
        lead, detectable = _lead(published_gains.mean(), published_draws)
        low = percentile_interval(published_draws)
        verdict = "yes" if low is not None and low[0] > 0 else "no"
        verdicts.append(
            f"- preference step, {name} at {rate}: earns its place: {verdict}, {lead} success as published, "
            f"{executed[0]} as trained; detectable {detectable or 'nothing'} and {executed[1] or 'nothing'}"
        )
    numbers = ", ".join(str(head["student"]) for head in heads)
    first = heads[0]["first_task"]
    title = (
        f"students {numbers}; {tasks} noisy desk tasks from {first} on; 95 % intervals over tasks, then students too"
    )
    return [title, "", text_table(rows), "", *verdicts]


def _lead(mean: float, draws: FloatArray) -> list[str]:
    """Return a difference with its interval, and the least difference that is detected with 80 % power."""
    bounds = percentile_interval(draws)
    assert bounds is not None
    error = float(draws.std())
    detectable = f"{minimum_detectable_difference(error):.3f}" if error else ""
    return [f"{mean:+.3f} [{bounds[0]:+.3f}, {bounds[1]:+.3f}]", detectable]


def main() -> None:
    """Print the table of the pieces that are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUTCOMES, help="folder of the pieces (default: %(default)s)")
    arguments = parser.parse_args()
    paths = sorted(arguments.out.glob("student-*.jsonl.zst"))
    if not paths:
        raise SystemExit(f"{arguments.out}: no pieces")
    print("\n".join(table([read_piece(path) for path in paths])))


if __name__ == "__main__":
    main()
