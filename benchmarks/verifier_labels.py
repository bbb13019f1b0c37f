"""Value of a verifier's labels: how well verifiers trained on three kinds find costly steps, beside entropy.

    python -m benchmarks.verifier_labels --choose      # recipes on calibration tasks
    python -m benchmarks.verifier_labels               # all arms on held-out tasks

States are those of the cloned policy's own greedy episodes, on desk under training's hazards. A state is savable if the
expert, continuing from it, succeeds; the policy's action there is costly if after it the expert fails or takes more
steps. Verifiers are trained on three kinds of labels:

    corrupted    the product's: the teacher's steps, and plausible mistakes in their place, each played on
    student      the policy's own actions at its own states, each played on by the expert
    pairs        the same with the expert's action wherever it differs: a ranking within a state

from two initialisations, the base model as in the product or the clone's weights, and, on pairs, by three losses: the
product's cross-entropy of each label, the Bradley-Terry loss within a state (-log sigmoid of the better action's logit
less the worse one's), or their sum. Epochs and rate are the product's unless `ARMS` sets others; `--choose` tries more
of them on calibration tasks. Held-out tasks are desk's from `--first-task` on, which no configuration or test reads and
no choice may be made on: 31266 to 31365 and 31666 to 31765 have been read.

The baselines are raw and masked entropy, and the router's models on the router's features, fitted to the same training
states. AUROC on held-out tasks, with a 95 % bootstrap over tasks.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from benchmarks.students import fresh_specs
from benchmarks.verifier_recipes import Arm, verifier_logits
from r2v.config import Config, RouterConfig, TaskSelection, load
from r2v.data.episode import to_line
from r2v.data.schema import read_records
from r2v.evaluation.acting.methods import MethodRunner
from r2v.evaluation.measures.statistics import FloatArray, percentile_interval
from r2v.evaluation.settings import EvaluateSettings
from r2v.pipeline.graph import upstream
from r2v.pipeline.inputs import published
from r2v.pipeline.jobs import JOBS
from r2v.pipeline.run import run_here
from r2v.randomness import seed_of
from r2v.rollout.counterfactual import play_counterfactual, rollout_with_snapshots
from r2v.rollout.session import EpisodeSpec, episode_specs
from r2v.router.features import select
from r2v.router.labels import disagrees
from r2v.router.training import fit_part
from r2v.storage.artifact import Work
from r2v.storage.files import write_lines
from r2v.verifier.labels import VerifierExample, detour_value, in_order, read_examples
from r2v.verifier.scores import auroc

FIRST_TASK = 31_666
DRAWS = 1000
GROUPS = ("uncertainty", "progress", "page", "tool")
"""Of features, those that need no verifier and no further samples."""
ENTROPIES = ("uncertainty.entropy_max", "uncertainty.entropy_mean", "uncertainty.entropy_nonfree_max")
ENTROPY, FEATURES = "entropy_nonfree_max", " on the router's features"
BOOSTING = f"boosting{FEATURES}"
"""A baseline of the verifier: the router's own model."""
ARMS = (
    Arm(labels="corrupted", start="base"),
    Arm(labels="corrupted", start="clone"),
    Arm(labels="student", start="base"),
    Arm(labels="student", start="clone"),
    Arm(labels="pairs", start="base"),
    Arm(labels="pairs", start="clone"),
    Arm(labels="pairs", start="base", loss="both"),
    Arm(labels="pairs", start="clone", loss="both"),
    Arm(labels="pairs", start="clone", loss="pairs"),
)
EPOCHS, RATES = (3, 10, 30), (1e-3, 4e-3)
"""Epochs and learning rates that are tried for each arm on calibration tasks."""


@dataclass(frozen=True, kw_only=True)
class State:
    """A savable state: the policy's action with its value, the expert's action, and the router's features."""

    example: VerifierExample
    """Example of the policy's action; its target is 1 if the action loses nothing."""
    expert: str | None
    """The expert's action if it differs."""
    features: dict[str, float]

    @property
    def costly(self) -> bool:
        """True if the action costs a step or the task."""
        return self.example.target < 1.0


async def savable_states(runner: MethodRunner, split: str, discount: float, spec: EpisodeSpec) -> list[State]:
    """Return the savable states of one greedy episode of the policy."""
    played = await rollout_with_snapshots(runner.world.start(spec), runner.slm, runner.waves)
    states = []
    for step in played.snapshots:
        shown = await runner.llm.act(step.view)
        best = await play_counterfactual(step.before, shown, runner.llm, runner.waves)
        if not best.success or best.env_fault is not None:
            continue
        differs = disagrees(step.act.text, shown.text, step.view.tools)
        own = await play_counterfactual(step.before, step.act, runner.llm, runner.waves) if differs else best
        assert step.act.proposal is not None
        example = VerifierExample(
            state_id=f"{played.episode.episode_id}#{step.view.step}",
            task_id=spec.task.task_id,
            split=split,
            messages=step.view.messages,
            action=step.act.text,
            target=detour_value(own.success, len(own.steps) - len(best.steps), discount),
            label_source="executed",
            kind="student",
        )
        features = await runner.extractor.features(step.view, step.act.proposal)
        states.append(State(example=example, expert=shown.text if differs else None, features=features))
    return states


def states_of(
    runner: MethodRunner, specs: Sequence[EpisodeSpec], split: str, discount: float, path: Path
) -> list[State]:
    """Return the states of all episodes, played once and kept in a file."""
    if not path.exists():
        every = runner.waves.run(partial(savable_states, runner, split, discount, spec) for spec in specs)
        write_lines(path, (to_line(state) for states in every for state in states))
    return read_records(path, State)


def with_experts(states: Sequence[State]) -> list[VerifierExample]:
    """Return the policy's actions, and the expert's wherever it differs."""
    better = [
        replace(state.example, action=state.expert, target=1.0, kind="expert")
        for state in states
        if state.expert is not None
    ]
    return in_order([*(state.example for state in states), *better])


def router_scores(kind: str, learnt: Sequence[State], held: Sequence[State], seed: int) -> FloatArray:
    """Return scores of the router's own model on its own features, fitted to predict costly actions."""
    names = select(learnt[0].features, GROUPS)
    x, held_x = (np.array([[state.features[name] for name in names] for state in part]) for part in (learnt, held))
    tasks = [state.example.task_id for state in learnt]
    weights = np.array([1 / tasks.count(task) for task in tasks])
    part = fit_part(RouterConfig(model=kind), x, np.array([float(state.costly) for state in learnt]), weights, seed)
    return np.array([part.predict(values) for values in held_x.tolist()])


def costly_auroc(scores: FloatArray, held: Sequence[State]) -> float | None:
    """Return the AUROC of telling costly actions from others."""
    return auroc(scores, np.array([state.costly for state in held]))


def drawn_aurocs(scores: FloatArray, held: Sequence[State], seed: int) -> FloatArray:
    """Return AUROCs of costly actions, (1 + DRAWS,): of these states, then of draws of tasks common to all signals."""
    tasks = list(dict.fromkeys(state.example.task_id for state in held))
    task = np.array([tasks.index(state.example.task_id) for state in held])
    costly = np.array([state.costly for state in held])
    gaps = np.sign(scores[costly][:, None] - scores[~costly][None, :])
    wins = np.zeros((len(tasks), len(tasks)))
    np.add.at(wins, (task[costly][:, None], task[~costly][None, :]), (1 + gaps) / 2)
    draws = np.random.default_rng(seed_of("verifier labels", seed)).integers(len(tasks), size=(DRAWS, len(tasks)))
    counts = np.stack([np.ones(len(tasks)), *(np.bincount(own, minlength=len(tasks)) for own in draws)])
    good, bad = (counts @ np.bincount(task[own], minlength=len(tasks)) for own in (~costly, costly))
    won = np.einsum("dt,tu,du->d", counts, wins, counts)
    return np.asarray(won / np.where(good * bad, good * bad, np.nan))


def row(name: str, drawn: FloatArray, *others: FloatArray) -> str:
    """Return the AUROC and its lead over each of the others, with intervals over tasks."""
    cells = [_shown(drawn, ""), *(_shown(drawn - other, "+") for other in others)]
    return f"| {name} | " + " | ".join(cells) + " |"


def _shown(drawn: FloatArray, sign: str) -> str:
    bounds = percentile_interval(drawn[1:][np.isfinite(drawn[1:])])
    return f"{drawn[0]:{sign}.3f}" + ("" if bounds is None else f" [{bounds[0]:{sign}.3f}, {bounds[1]:{sign}.3f}]")


@dataclass(frozen=True, kw_only=True)
class Student:
    """A clone with the states it came to, and the labels that a verifier of it may learn."""

    config: Config
    runner: MethodRunner
    folder: Path
    clone: Path
    learnt: list[State]

    @classmethod
    def of(cls, seed: int, train_tasks: int) -> Student:
        """Load the student, made by the pipeline first if it is missing."""
        config = load(Path("configs/mrp.yaml"), [f"seed={seed}", f"prefix=labels{seed}"])
        needed = upstream(["bc", "verifier"])
        run_here(config, without=[job.name for job in JOBS if job.name not in needed])
        folder = Path("outputs/verifier_labels") / str(seed)
        folder.mkdir(parents=True, exist_ok=True)
        clone = published(config, "bc").folder / "final"
        runner = MethodRunner.of(
            EvaluateSettings.of(config), Work(folder=folder, fingerprint="", inputs={}, root=folder), policy=clone
        )
        student = cls(config=config, runner=runner, folder=folder, clone=clone, learnt=[])
        student.learnt.extend(student.played("train", train_tasks))
        return student

    def played(self, split: str, tasks: int) -> list[State]:
        """Return the states of the first tasks of a split."""
        selection = TaskSelection.training(self.config)
        specs = episode_specs(
            self.runner.world.benchmark, split, [self.config.seed], selection, method="slm_only", limit=tasks
        )
        return self._states(specs, split, f"{split}-{tasks}.jsonl")

    def unread(self, tasks: int, first_task: int) -> list[State]:
        """Return the states of held-out tasks."""
        specs = fresh_specs(self.config, self.runner, "noisy", tasks, first_task)
        return self._states(specs, "calibration", f"held-out-{first_task}-{tasks}.jsonl")

    def _states(self, specs: Sequence[EpisodeSpec], split: str, name: str) -> list[State]:
        return states_of(self.runner, specs, split, self.config.verifier.discount, self.folder / name)

    def labels(self, kind: str) -> list[VerifierExample]:
        """Return the training labels of a kind."""
        if kind == "corrupted":
            file = published(self.config, "verifier").file("verifier_data.jsonl")
            return [example for example in read_examples(file) if example.split == "train"]
        return with_experts(self.learnt) if kind == "pairs" else [state.example for state in self.learnt]

    def scores(self, arm: Arm, held: Sequence[State]) -> FloatArray:
        """Return the costs that a verifier of this arm predicts for these actions."""
        examples = [state.example for state in held]
        return -verifier_logits(self.config, arm, self.labels(arm.labels), self.clone, examples)


def rivals(student: Student, held: Sequence[State]) -> dict[str, FloatArray]:
    """Return the baselines' scores, which need no verifier."""
    return {
        **{name.partition(".")[2]: np.array([state.features[name] for state in held]) for name in ENTROPIES},
        **{
            f"{kind}{FEATURES}": router_scores(kind, student.learnt, held, student.config.seed)
            for kind in ("logistic", "boosting")
        },
    }


def measure(student: Student, held_tasks: int, first_task: int) -> Iterator[str]:
    """Yield the table of one student, line by line."""
    held, learnt, seed = student.unread(held_tasks, first_task), student.learnt, student.config.seed
    tasks = len({state.example.task_id for state in learnt})
    yield (
        f"seed {seed}: {len(held)} savable states of {held_tasks} held-out tasks, "
        f"{sum(state.costly for state in held)} costly actions; {len(learnt)} training states of {tasks} tasks"
    )
    yield from ("", f"| signal | AUROC of costly actions | above {ENTROPY} | above boosting |", "|---|---|---|---|")
    drawn = {name: drawn_aurocs(scores, held, seed) for name, scores in rivals(student, held).items()}
    above = [drawn[name] for name in (ENTROPY, BOOSTING)]
    yield from (row(name, own, *above) for name, own in drawn.items())
    for arm in ARMS:
        title = f"{arm.name} ({len(student.labels(arm.labels))} labels, {arm.epochs:g} epochs at {arm.lr:g})"
        yield row(title, drawn_aurocs(student.scores(arm, held), held, seed), *above)
    yield ""


def choose(students: Sequence[Student], tasks: int) -> None:
    """Print the AUROC of every recipe on calibration tasks, and the best of each arm."""
    held = [student.played("calibration", tasks) for student in students]
    for name in rivals(students[0], held[0]):
        _print(name, [costly_auroc(rivals(*pair)[name], pair[1]) for pair in zip(students, held, strict=True)])
    for arm in ARMS:
        results = {}
        for epochs, lr in product(EPOCHS, RATES):
            tried = replace(arm, epochs=epochs, lr=lr)
            values = [
                costly_auroc(student.scores(tried, own), own) for student, own in zip(students, held, strict=True)
            ]
            results[f"{arm.name}, {epochs} epochs at {lr:g}"] = values
            _print(f"{arm.name}, {epochs} epochs at {lr:g}", values)
        _print("best: " + max(results, key=lambda name: fmean(value or 0.0 for value in results[name])), [])


def _print(name: str, values: Sequence[float | None]) -> None:
    print(f"{name}: " + ", ".join("none" if value is None else f"{value:.3f}" for value in values), flush=True)


def main() -> None:
    """Print a table for each student."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="students (default: %(default)s)")
    parser.add_argument("--train", type=int, default=200, help="training tasks (default: %(default)s)")
    parser.add_argument("--held-out", type=int, default=100, help="tasks (default: %(default)s)")
    parser.add_argument("--first-task", type=int, default=FIRST_TASK, help="default: %(default)s")
    parser.add_argument("--choose", action="store_true", help="try recipes on calibration tasks instead")
    arguments = parser.parse_args()
    if arguments.choose:
        choose([Student.of(seed, arguments.train) for seed in arguments.seeds], arguments.held_out)
        return
    for seed in arguments.seeds:
        for line in measure(Student.of(seed, arguments.train), arguments.held_out, arguments.first_task):
            print(line, flush=True)


if __name__ == "__main__":
    main()
