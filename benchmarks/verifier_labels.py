"""What a verifier's labels are worth: does it tell costly steps better than entropy does?

    python -m benchmarks.verifier_labels [--seeds 0 1] [--train 200] [--held-out 100]

States are those of the cloned policy's own greedy episodes, on desk under training's hazards. A state is savable where
the expert, going on from it, succeeds; the policy's action there is costly where after it the expert fails or takes
more steps. Verifiers are trained by the product's own training, on labels from three places:

    corrupted    the product's: the teacher's steps, and plausible mistakes put in their place and played on
    student      the policy's own actions at its own states, each played on by the expert
    pairs        the same, and the expert's action beside each that differs: what is better within a state

They stand beside raw and masked entropy, and the router's models on the router's features, fitted to the same training
states. AUROC on held-out tasks, with a 95 % bootstrap over tasks; held-out tasks are desk's from `--first-task` on,
which no configuration, test or table has read.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from benchmarks.students import fresh_specs
from r2v.config import Config, RouterConfig, TaskSelection, load
from r2v.evaluation.methods import MethodRunner
from r2v.evaluation.settings import EvaluateSettings
from r2v.evaluation.statistics import FloatArray, percentile_interval
from r2v.pipeline.graph import upstream
from r2v.pipeline.inputs import published
from r2v.pipeline.jobs import JOBS
from r2v.pipeline.run import run_here
from r2v.policy.load import load_policy
from r2v.randomness import seed_of
from r2v.rollout.counterfactual import play_counterfactual, rollout_with_snapshots
from r2v.rollout.model_factory import scoring_encoder
from r2v.rollout.session import EpisodeSpec, episode_specs
from r2v.router.features import select
from r2v.router.labels import disagrees
from r2v.router.training import fit_part
from r2v.storage.artifact import Work
from r2v.verifier.calibrate import logits_of
from r2v.verifier.labels import VerifierExample, detour_value, in_order, read_examples
from r2v.verifier.model import VerifierModel
from r2v.verifier.scores import auroc
from r2v.verifier.train import encoded, train

FIRST_TASK = 31_266
DRAWS = 1000
GROUPS = ("uncertainty", "progress", "page", "tool")
"""Of features, those that need no verifier and no further samples."""
ENTROPIES = ("uncertainty.entropy_max", "uncertainty.entropy_mean", "uncertainty.entropy_nonfree_max")


@dataclass(frozen=True, kw_only=True)
class State:
    """A savable state: the policy's action with what it is worth, the expert's, and the router's features."""

    example: VerifierExample
    """Of the policy's action; its target is 1 where nothing is lost."""
    expert: str | None
    """The expert's action where it differs."""
    features: dict[str, float]

    @property
    def costly(self) -> bool:
        """Whether the action costs a step or the task."""
        return self.example.target < 1.0


async def savable_states(runner: MethodRunner, split: str, discount: float, spec: EpisodeSpec) -> list[State]:
    """Those of one greedy episode of the policy."""
    played = await rollout_with_snapshots(runner.world.start(spec), runner.slm, runner.waves)
    found = []
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
        found.append(State(example=example, expert=shown.text if differs else None, features=features))
    return found


def states_of(runner: MethodRunner, specs: Sequence[EpisodeSpec], split: str, discount: float) -> list[State]:
    """Of all episodes."""
    every = runner.waves.run(partial(savable_states, runner, split, discount, spec) for spec in specs)
    return [state for states in every for state in states]


def verifier_scores(config: Config, examples: Sequence[VerifierExample], held: Sequence[State]) -> FloatArray:
    """How costly a verifier that is trained on these examples calls each held-out action."""
    loaded = load_policy(config.policy.trained(), for_training=True, seed=config.seed)
    encode = scoring_encoder(loaded.tokenizer, config.policy, config.inference, ())
    model = VerifierModel(loaded.model)
    with tempfile.TemporaryDirectory() as folder:
        phase = config.training.phase("verifier")
        train(model, encoded(examples, encode), phase, seed=config.seed, folder=Path(folder), stop=lambda: False)
    rows = encoded([state.example for state in held], encode)
    scores = dict(zip(_places([state.example for state in held]), -logits_of(model, rows), strict=True))
    return np.array([scores[at] for at in range(len(held))])


def _places(examples: Sequence[VerifierExample]) -> list[int]:
    """Where the i-th row of `encoded` stood."""
    return [at for _, at in sorted((one.state_id, at) for at, one in enumerate(examples))]


def with_experts(states: Sequence[State]) -> list[VerifierExample]:
    """The policy's actions, and the expert's beside each that differs."""
    better = [
        replace(one.example, action=one.expert, target=1.0, kind="expert") for one in states if one.expert is not None
    ]
    return in_order([*(one.example for one in states), *better])


def router_scores(kind: str, learnt: Sequence[State], held: Sequence[State], seed: int) -> FloatArray:
    """The router's own model on its own features, fitted to whether an action is costly."""
    names = select(learnt[0].features, GROUPS)
    x, held_x = (np.array([[one.features[name] for name in names] for one in part]) for part in (learnt, held))
    tasks = [one.example.task_id for one in learnt]
    weights = np.array([1 / tasks.count(task) for task in tasks])
    part = fit_part(RouterConfig(model=kind), x, np.array([float(one.costly) for one in learnt]), weights, seed)
    return np.array([part.predict(values) for values in held_x.tolist()])


def row(name: str, scores: FloatArray, held: Sequence[State], seed: int) -> str:
    """AUROC with its interval over tasks."""
    costly, tasks = np.array([one.costly for one in held]), np.array([one.example.task_id for one in held])
    of_task = [np.flatnonzero(tasks == task) for task in dict.fromkeys(tasks.tolist())]
    generator = np.random.default_rng(seed_of("verifier labels", seed))
    drawn = []
    for _ in range(DRAWS):
        rows = np.concatenate([of_task[i] for i in generator.integers(len(of_task), size=len(of_task))])
        drawn.append(auroc(scores[rows], costly[rows]))
    bounds = percentile_interval(np.array([value for value in drawn if value is not None]))
    shown = "" if bounds is None else f" [{bounds[0]:.3f}, {bounds[1]:.3f}]"
    return f"| {name} | {auroc(scores, costly):.3f}{shown} |"


def measure(config: Config, train_tasks: int, held_tasks: int, first_task: int) -> list[str]:
    """The table of one student."""
    needed = upstream(["bc", "verifier"])
    run_here(config, without=[one.name for one in JOBS if one.name not in needed])
    folder = Path("outputs/verifier_labels") / str(config.seed)
    folder.mkdir(parents=True, exist_ok=True)
    runner = MethodRunner.of(
        EvaluateSettings.of(config),
        Work(folder=folder, fingerprint="", inputs={}, root=folder),
        policy=published(config, "bc").folder / "final",
    )
    discount, selection = config.verifier.discount, TaskSelection.training(config)
    learnt_specs = episode_specs(
        runner.world.benchmark, "train", [config.seed], selection, method="slm_only", limit=train_tasks
    )
    learnt = states_of(runner, learnt_specs, "train", discount)
    held = states_of(runner, fresh_specs(config, runner, "noisy", held_tasks, first_task), "calibration", discount)
    labels = published(config, "verifier").file("verifier_data.jsonl")
    corrupted = [one for one in read_examples(labels) if one.split == "train"]
    student = [one.example for one in learnt]
    signals = {
        **{name.partition(".")[2]: np.array([one.features[name] for one in held]) for name in ENTROPIES},
        "logistic on the router's features": router_scores("logistic", learnt, held, config.seed),
        "boosting on the router's features": router_scores("boosting", learnt, held, config.seed),
        f"verifier, corrupted ({len(corrupted)} labels)": verifier_scores(config, corrupted, held),
        f"verifier, student ({len(student)} labels)": verifier_scores(config, student, held),
        f"verifier, pairs ({len(with_experts(learnt))} labels)": verifier_scores(config, with_experts(learnt), held),
    }
    costly = sum(one.costly for one in held)
    return [
        f"seed {config.seed}: {len(held)} savable states of {held_tasks} held-out tasks, {costly} costly actions; "
        f"{len(learnt)} training states of {train_tasks} tasks",
        "",
        "| signal | AUROC of costly actions |",
        "|---|---|",
        *(row(name, scores, held, config.seed) for name, scores in signals.items()),
        "",
    ]


def main() -> None:
    """Print a table for each student."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="students (default: %(default)s)")
    parser.add_argument("--train", type=int, default=200, help="training tasks (default: %(default)s)")
    parser.add_argument("--held-out", type=int, default=100, help="tasks (default: %(default)s)")
    parser.add_argument("--first-task", type=int, default=FIRST_TASK, help="default: %(default)s")
    asked = parser.parse_args()
    for seed in asked.seeds:
        config = load(Path("configs/mrp.yaml"), [f"seed={seed}", f"prefix=labels{seed}"])
        print("\n".join(measure(config, asked.train, asked.held_out, asked.first_task)), flush=True)


if __name__ == "__main__":
    main()
