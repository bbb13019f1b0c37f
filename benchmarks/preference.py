"""Does the preference step earn its place? Its recipes beside each other, on desk tasks that nothing has read.

    python -m benchmarks.preference --students 0 1 2        # a piece each; what is there is not made again
    python -m benchmarks.preference --table                 # the table of the pieces that are there
    python -m benchmarks.preference --students 0 --first-task 32000 --out /tmp/pilot      # pilot tasks, to choose by

A student is configs/mrp.yaml under another seed. Of its clone each recipe trains a policy by the product's own stages,
at each learning rate: DPO on pairs valued by the policy playing on (as it was) or by the teacher playing on, rejection
fine-tuning and DAgger on the same states, all with a share of cloned actions rehearsed; and that rehearsal alone, which
says how much of a gain is only more training. Each is accepted or not as the product would, on all calibration tasks,
and then, whatever the verdict, played beside the clone on tasks behind all that any stage, test or table counts to
(`FIRST_TASK`), under evaluation's noise. Those are looked at once: recipes are chosen on pilot tasks.

A piece is benchmarks/outcomes/preference/student-<n>.jsonl.zst: the commit, CPU-seconds, and of each policy the outcome
of every task. Intervals are 95 % bootstraps over tasks, of one student; over all, students are drawn too.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import zstandard

from benchmarks.looks import LEDGER, look_at, open_look
from benchmarks.students import fresh_specs
from r2v.config import Config, load
from r2v.config.methods import WEAK
from r2v.console import text_table
from r2v.data.store import StoredEpisodes
from r2v.envs.desk import Desk
from r2v.errors import UsageError
from r2v.evaluation.acceptance import compare_policies
from r2v.evaluation.acting_settings import ActingSettings
from r2v.evaluation.methods import MethodRunner
from r2v.evaluation.settings import EvaluateSettings
from r2v.evaluation.statistics import FloatArray, minimum_detectable_difference, percentile_interval
from r2v.pipeline.graph import upstream
from r2v.pipeline.inputs import published
from r2v.pipeline.jobs import JOBS
from r2v.pipeline.run import run_here
from r2v.randomness import seed_of
from r2v.storage.artifact import Work
from r2v.storage.code_identity import git_commit

OUTCOMES = Path("benchmarks/outcomes/preference")
FIRST_TASK, NUM_TASKS = 31_466, 200
DRAWS = 2000
CLONE, CONTROL = "clone", "rehearsal alone"
COMMON = ("preference.rehearsal=0.5", "verifier.num_tasks=8", "training.verifier.num_epochs=1")
"""Overrides of all recipes. Pairs go by executed values, so a verifier that has learnt little is as good as any."""
RECIPES = {
    "dpo, policy plays on": ("preference.method=dpo", "candidates.continuation=slm", "candidates.discount=1"),
    "dpo": ("preference.method=dpo", "candidates.continuation=teacher"),
    "rft": ("preference.method=rft", "candidates.continuation=teacher"),
    "dagger": ("preference.method=dagger", "candidates.continuation=teacher"),
    CONTROL: ("preference.method=dagger", "candidates.continuation=teacher"),
}
RATES = ("5e-5", "2e-4")
"""Learning rates. On pilot tasks 1e-3 was too high for all: DPO lost two thirds of the clone's success."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A policy that a recipe made, and what it was made of."""

    weights: Path
    examples: int
    updates: int


def trained_by(config: Config, recipe: str, folder: Path) -> Trained:
    """The policy before it is accepted or thrown away."""
    needed = upstream(["preference"])
    run_here(config, without=[row.name for row in JOBS if row.name not in needed])
    made = published(config, "preference")
    if recipe == CONTROL:
        return _cloned_on(config, folder)
    report = "dpo_report.json" if config.preference.method == "dpo" else "imitation_report.json"
    return _trained(made.folder, json.loads((made.folder / report).read_text()))


def _trained(folder: Path, report: dict[str, Any]) -> Trained:
    state = json.loads((folder / "checkpoint-latest" / "trainer_state.json").read_text())
    examples = report["n_pairs"] if "n_pairs" in report else report["n_examples"]
    return Trained(weights=folder / "final", examples=examples, updates=state["global_step"])


def _cloned_on(config: Config, folder: Path) -> Trained:
    """As DAgger trains, with cloned actions in place of those at the policy's own states."""
    from r2v.policy.candidates import read_states
    from r2v.policy.imitation import ShownAction, shown_actions, train_imitation
    from r2v.policy.load import load_policy
    from r2v.policy.prompt_encoder import Encoder
    from r2v.policy.rehearsal import rehearsed
    from r2v.policy.training_rows import steps_of

    cloned = StoredEpisodes(published(config, "perturb").file("trajectories.jsonl"), keep=lambda one: True)
    count = len(shown_actions(read_states(published(config, "candidates").file("candidates.jsonl")), "dagger"))
    again = [
        ShownAction(prompt=prompt, action=action, task_id=episode.metadata.task_id)
        for episode in rehearsed(cloned, count, 0.5, config.seed + 1)
        for prompt, action in steps_of(episode)
    ]
    loaded = load_policy(config.policy, published(config, "bc").folder / "final", for_training=True)
    report = train_imitation(
        again[:count],
        "dagger",
        loaded,
        Encoder.of(loaded.tokenizer, config.policy, config.inference.max_new_tokens),
        config.training.phase("preference"),
        folder,
        seed=config.seed,
        cloned=cloned,
        rehearsal=config.preference.rehearsal,
    )
    return _trained(folder, report)


def played(config: Config, weights: Path, folder: Path, first_task: int) -> str:
    """A digit for each unread task: whether the policy succeeds alone."""
    work = Work(folder=folder, fingerprint="", inputs={}, root=folder)
    runner = MethodRunner.of(EvaluateSettings.of(config), work, policy=weights)
    cell = runner.cell(WEAK, fresh_specs(config, runner, "noisy", NUM_TASKS, first_task))
    runner.player.play([cell])
    return "".join(str(int(episode.success)) for (episode,) in runner.player.records(cell))


def piece(number: int, first_task: int, path: Path) -> None:
    """Make a student's policies, accept or not, play, and write down."""
    began, lines = time.process_time(), list[dict[str, Any]]()
    for recipe, overrides in RECIPES.items():
        for rate in RATES:
            given = [f"seed={number}", f"prefix=preference{number}", f"training.preference.lr={rate}"]
            config = load(Path("configs/mrp.yaml"), [*given, "preference.accept=always", *COMMON, *overrides])
            folder = Path("outputs/preference") / f"{number}-{recipe.replace(', ', '-').replace(' ', '-')}-{rate}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            trained = trained_by(config, recipe, folder)
            clone = published(config, "bc").folder / "final"
            if not lines:
                lines.append({"recipe": CLONE, "success": played(config, clone, folder, first_task)})
            verdict = compare_policies(
                ActingSettings.of(config),
                Work(folder=folder, fingerprint=folder.name, inputs={}, root=Path()),
                cloned=clone,
                trained=trained.weights,
                limit=None,
                rule="interval",
            )
            print(f"student {number}, {recipe} at {rate}: {verdict}", flush=True)
            lines.append(
                {
                    "recipe": recipe,
                    "rate": rate,
                    "examples": trained.examples,
                    "updates": trained.updates,
                    "acceptance": verdict.summary(),
                    "success": played(config, trained.weights, folder, first_task),
                }
            )
    took = round(time.process_time() - began, 1)
    head = {"student": number, "commit": git_commit(), "first_task": first_task, "cpu_seconds": took}
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in [head, *lines])
    path.write_bytes(zstandard.ZstdCompressor(level=19).compress(text.encode()))
    print(f"{path}: {took} CPU-s", flush=True)


def read_piece(path: Path) -> list[dict[str, Any]]:
    """The lines of a piece: its head, the clone, and every policy."""
    text = zstandard.ZstdDecompressor().decompress(path.read_bytes(), max_output_size=1 << 26).decode()
    return [json.loads(line) for line in text.splitlines()]


def digits(line: dict[str, Any]) -> FloatArray:
    """The outcomes of a policy, (tasks,)."""
    return np.array([digit == "1" for digit in line["success"]], float)


def table(pieces: Sequence[Sequence[dict[str, Any]]]) -> list[str]:
    """The table of these students, and of each recipe whether it earns its place. Raises UsageError for pieces of
    unlike tasks."""
    heads = [head for head, *_ in pieces]
    if len({(head["first_task"], len(clone["success"])) for head, clone, *_ in pieces}) > 1:
        raise UsageError("pieces of unlike tasks: make those anew that were played on others")
    students, tasks = len(pieces), len(pieces[0][1]["success"])
    generator = np.random.default_rng(seed_of("preference", students, tasks))
    counts = generator.multinomial(tasks, [1 / tasks] * tasks, size=DRAWS) / tasks
    drawn = generator.integers(students, size=(DRAWS, students))
    rows = [["recipe", "rate", "student", "examples", "updates", "clone", "trained", "difference", "detectable", ""]]
    verdicts = []
    for at, (name, rate) in enumerate((line["recipe"], line["rate"]) for line in pieces[0][2:]):
        lines = [lines[2 + at] for lines in pieces]
        if any((line["recipe"], line["rate"]) != (name, rate) for line in lines):
            raise UsageError(f"{name} at {rate}: a piece holds other recipes: make it anew")
        gains = np.stack([digits(line) - digits(one[1]) for line, one in zip(lines, pieces, strict=True)])
        accepted = np.array([line["acceptance"]["accepted"] for line in lines])
        for head, line, one, gain in zip(heads, lines, pieces, gains, strict=True):
            kept = "accepted" if line["acceptance"]["accepted"] else "thrown away"
            made = [str(line["examples"]), str(line["updates"])]
            success = [f"{digits(one[1]).mean():.3f}", f"{digits(line).mean():.3f}"]
            rows.append([name, rate, str(head["student"]), *made, *success, *_lead(gain.mean(), counts @ gain), kept])
        draws = np.take_along_axis(gains @ counts.T, drawn.T, axis=0).mean(axis=0)
        told = _lead(gains.mean(), draws)
        rows.append([name, rate, "all", "", "", "", "", *told, f"{accepted.sum()} of {students} accepted"])
        published_gains = gains * accepted[:, None]
        published_draws = np.take_along_axis(published_gains @ counts.T, drawn.T, axis=0).mean(axis=0)
        lead, detectable = _lead(published_gains.mean(), published_draws)
        low = percentile_interval(published_draws)
        verdict = "yes" if low is not None and low[0] > 0 else "no"
        verdicts.append(
            f"- preference step, {name} at {rate}: earns its place: {verdict}, {lead} success as published, {told[0]} "
            f"as trained; detectable {detectable or 'nothing'} and {told[1] or 'nothing'}"
        )
    numbers = ", ".join(str(head["student"]) for head in heads)
    first = heads[0]["first_task"]
    title = (
        f"students {numbers}; {tasks} noisy desk tasks from {first} on; 95 % intervals over tasks, then students too"
    )
    return [title, "", text_table(rows), "", *verdicts]


def _lead(mean: float, draws: FloatArray) -> list[str]:
    """A difference with its interval, and the least that would be found with 80 % power."""
    bounds = percentile_interval(draws)
    assert bounds is not None
    error = float(draws.std())
    detectable = f"{minimum_detectable_difference(error):.3f}" if error else ""
    return [f"{mean:+.3f} [{bounds[0]:+.3f}, {bounds[1]:+.3f}]", detectable]


def main() -> None:
    """Make the pieces that are not there, or print their table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--students", type=int, nargs="+", default=[0, 1, 2], help="seeds (default: 0 1 2)")
    parser.add_argument("--first-task", type=int, default=FIRST_TASK, help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=OUTCOMES, help="where pieces lie (default: %(default)s)")
    parser.add_argument("--table", action="store_true", help="print the table of the pieces that are there")
    asked = parser.parse_args()
    if asked.table:
        paths = sorted(asked.out.glob("student-*.jsonl.zst"))
        if not paths:
            raise SystemExit(f"{asked.out}: no pieces; make them with --students")
        print("\n".join(table([read_piece(path) for path in paths])))
        return
    open_look(LEDGER, look_at(Desk.name, asked.first_task, NUM_TASKS, str(asked.out)))
    for number in asked.students:
        path = asked.out / f"student-{number}.jsonl.zst"
        if not path.exists():
            piece(number, asked.first_task, path)


if __name__ == "__main__":
    main()
