"""Training of the verifiers: one on all tasks, one for each fold without its tasks; by a rank for each GPU.

    report = fit_verifiers(cfg, examples, work)                    # the stage itself
    python -m r2v.stages.verifier_training FOLDER .              # one of its ranks, started by a launch

Ranks train and leave checkpoints; the command then finds every verifier trained, fits its temperature and writes it.
What all of it depends on is `VerifierSettings`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from r2v import config as c
from r2v import distributed
from r2v.data.manifest import tools_of_runs
from r2v.data.registry import DataRegistry
from r2v.randomness import digest
from r2v.storage.artifact import Work, attempt_of
from r2v.storage.integrity import Artifact

if TYPE_CHECKING:
    from r2v.policy.load import Loaded
    from r2v.verifier.held_out import HeldOutScores
    from r2v.verifier.labels import VerifierExample
    from r2v.verifier.model import Encode, VerifierModel
    from r2v.wire.message import ToolSpec

LABELS = "verifier_data.jsonl"
"""The labelled actions, of both splits."""
VERIFIERS, VALUES = ".", "values"
"""Below an attempt's folder: the verifiers, and those whose values make labels of temporal differences."""
FINAL = "final"
"""The folder of the verifier that learnt from all training tasks; those of the folds are named by their numbers."""

LEFT_OUT = "left_out"
"""The key of the report and of the summary that says why no verifier was trained."""


@dataclass(frozen=True, kw_only=True)
class VerifierSettings:
    """What a verifier depends on."""

    env: c.EnvConfig
    teacher: c.TeacherConfig
    policy: c.PolicyConfig
    perturbations: c.PerturbationsConfig
    inference: c.InferenceConfig
    cost: c.CostConfig
    rollout: c.RolloutConfig
    verifier: c.VerifierConfig
    phase: c.Phase
    tasks: c.TaskSelection
    num_folds: int
    seed: int
    prompt: int | None = field(default=None, metadata=c.IF_GIVEN)
    """`PolicyConfig.prompt_version`."""

    def require_possible(self) -> None:
        """Raises UsageError for weights that cannot be trained, or not by this optimizer."""
        self.policy.require_trainable()
        self.phase.require_optimizer()

    def require_anew(self) -> None:
        """Raises UsageError for a judge that is to be the model of a collection which the expert will make."""
        if self.verifier.mode == "llm_judge" or self.verifier.label_sources[0] in ("judge", "consensus"):
            self.teacher.require_judge()

    @classmethod
    def of(cls, config: c.Config) -> VerifierSettings:
        """The parts of the whole configuration that are read here."""
        return c.sections_of(
            cls,
            config,
            policy=config.policy.trained(),
            inference=config.inference.acting(),
            phase=config.training.phase("verifier"),
            tasks=c.TaskSelection.training(config),
            num_folds=config.candidates.num_folds,
            prompt=config.policy.prompt_version,
        )

    @property
    def needs_world(self) -> bool:
        """Whether the labels may be executed; recorded outcomes and a judge's opinions need no world."""
        return self.verifier.mode != "llm_judge" and self.verifier.label_sources[0] in (
            "auto",
            "corrupted",
            "consensus",
        )

    @property
    def asks_teacher(self) -> bool:
        """Whether the labels may cost a call to the teacher."""
        return self.verifier.mode == "llm_judge" or self.verifier.label_sources[0] in (
            "judge",
            "corrupted",
            "consensus",
        )


def fold_of(task_id: str, num_folds: int) -> int:
    """The fold a task belongs to: fold k's verifier has not seen it."""
    return int.from_bytes(digest("verifier-fold", task_id)[:4], "big") % num_folds


def fit_verifiers(
    cfg: VerifierSettings, examples: Sequence[VerifierExample], work: Work
) -> dict[str, float | str | None]:
    """Train and calibrate all verifiers of an attempt whose labels are written; the figures of the one that is used.
    Where no labelled task was held out they are the figures of the folds' verifiers, which have learnt from fewer
    tasks, each on its own fold, and one temperature serves all."""
    from r2v.verifier.held_out import pooled, score_held_out
    from r2v.verifier.labels import in_order

    train = in_order(_trained_by_ranks(cfg, examples, work.folder, VERIFIERS))
    calibration = in_order(example for example in examples if example.split == "calibration")
    held_out = len({example.good for example in calibration}) == 2
    bases, tools = _bases(cfg), _tools(cfg, work)
    places, scored = [], {}
    for place, part in _verifiers(cfg, train, work.folder):
        model, encode, loaded = _train_one(cfg, bases, part, tools=tools, folder=place)
        _write(cfg, model, loaded, place)
        places.append(place)
        unseen = calibration if held_out else [one for one in train if _own_fold(cfg, one) == place.name]
        if unseen:
            reported = not held_out or place.name == FINAL
            scored[place] = score_held_out(model, unseen, encode, controls=reported)
    if not held_out:
        scored = dict.fromkeys(places, pooled(scored.values()))
    figures = {place: _calibrated(place, scores) for place, scores in scored.items()}
    measured_on = "calibration tasks" if held_out else "training tasks, out of fold"
    return {"measured_on": measured_on, **figures[work.folder / FINAL]}


def lacking(cfg: VerifierSettings, examples: Sequence[VerifierExample]) -> str | None:
    """The reason that no verifier can be trained on these labels, in one line; None where all of them can."""
    train = [example for example in examples if example.split == "train"]
    good = sum(example.good for example in train)
    why = "a verifier learns from both"
    if 0 < good < len(train):
        if all(len({one.good for one in train if _own_fold(cfg, one) != str(k)}) == 2 for k in range(cfg.num_folds)):
            return None
        why = "those of one kind stand in too few tasks to leave any of these out"
    return (
        f"{good} good actions and {len(train) - good} bad ones: {why}; verifier.label_sources=[corrupted] executes "
        "wrong actions, which asks the teacher: auto does so where teacher.max_usd is set and worlds can be branched"
    )


def trained(artifact: Artifact | None, part: str = FINAL) -> Path | None:
    """The folder of a verifier in an artifact of this stage; None where it was left out, or the chain has none."""
    return None if artifact is None or LEFT_OUT in artifact.summary else artifact.file(part)


def values_out_of_fold(cfg: VerifierSettings, examples: Sequence[VerifierExample], work: Work) -> list[float]:
    """What is said of each example by a verifier that learnt from these targets and has not seen its task, (examples,):
    of a training task its fold's, of any other the one of all training tasks.

    The folds go one level deep: labels that fold k's verifier then learns from are values of models that saw fold k's
    outcomes, so its scores of fold k are not wholly out of sample.
    """
    from r2v.verifier.held_out import probabilities, readings_of
    from r2v.verifier.labels import read_examples, write_examples

    folder, values = work.folder / VALUES, [0.0] * len(examples)
    folder.mkdir(exist_ok=True)
    write_examples(folder / LABELS, examples)
    train = _trained_by_ranks(cfg, read_examples(folder / LABELS), work.folder, VALUES)
    asked = [_own_fold(cfg, one) if one.split == "train" else FINAL for one in examples]
    bases, tools = _bases(cfg), _tools(cfg, work)
    for place, part in _verifiers(cfg, train, folder):
        own = [at for at, name in enumerate(asked) if name == place.name]
        if not own:
            continue
        model, encode, _ = _train_one(cfg, bases, part, tools=tools, folder=place)
        logits = readings_of(model, [examples[at] for at in own], encode).logits
        for at, value in zip(own, probabilities(logits, 1.0), strict=True):
            values[at] = value
    return values


def _own_fold(cfg: VerifierSettings, example: VerifierExample) -> str:
    """The name of the fold that a training example belongs to."""
    return str(fold_of(example.task_id, cfg.num_folds))


def _trained_by_ranks(
    cfg: VerifierSettings, examples: Sequence[VerifierExample], folder: Path, part: str
) -> list[VerifierExample]:
    """The training examples; where there are several ranks, they have left each verifier's checkpoints by then."""
    ranks = distributed.ranks_for(cfg.phase.ranks, cfg.policy.device)
    if ranks > 1:
        distributed.launch(ranks, "-m", "r2v.stages.verifier_training", str(folder), part)
    return [example for example in examples if example.split == "train"]


def _tools(cfg: VerifierSettings, work: Work) -> tuple[ToolSpec, ...]:
    """What the verifier is told: the tools that were recorded with the runs, as the policy is."""
    from r2v.policy.training_tools import of_fresh_world, tool_specs

    if cfg.policy.tools != "auto":
        return ()
    registry = DataRegistry(work.root / "data")
    recorded = tools_of_runs([registry.get(run_id) for run_id in work.inputs["collect"].summary["run_ids"]])
    return tool_specs(of_fresh_world(cfg.env) if recorded is None else recorded)


def _bases(cfg: VerifierSettings) -> Iterator[Loaded]:
    """A model to train for each verifier: one base with new adapters each time, or whole weights loaded anew."""
    from r2v.policy.load import load_policy, with_fresh_adapters

    loaded = load_policy(cfg.policy, for_training=True, seed=cfg.seed)
    while True:
        yield loaded
        if cfg.policy.lora_r > 0:
            loaded = with_fresh_adapters(loaded, cfg.policy, cfg.seed)
        else:
            del loaded  # before the next is in memory
            loaded = load_policy(cfg.policy, for_training=True, seed=cfg.seed)


def _verifiers(
    cfg: VerifierSettings, train: Sequence[VerifierExample], folder: Path
) -> Iterator[tuple[Path, Sequence[VerifierExample]]]:
    """Every verifier's folder, and what it learns from: the one that is used, then one for each fold; at most
    `training.verifier.max_examples` each."""
    from r2v.policy.training.fit import draw_rows

    learns = {FINAL: list(train)}
    for fold in range(cfg.num_folds):
        learns[f"folds/{fold}"] = [example for example in train if _own_fold(cfg, example) != str(fold)]
    for place, examples in learns.items():
        rows = draw_rows(len(examples), cfg.phase.max_examples, cfg.seed)
        yield folder / place, [examples[row] for row in rows]


def _train_one(
    cfg: VerifierSettings,
    bases: Iterator[Loaded],
    train_on: Sequence[VerifierExample],
    *,
    tools: tuple[ToolSpec, ...],
    folder: Path,
) -> tuple[VerifierModel, Encode, Loaded]:
    """Train one verifier; where its folder holds it trained already, it is taken from there."""
    from r2v.rollout.model_factory import scoring_encoder
    from r2v.verifier.model import VerifierModel
    from r2v.verifier.train import encoded, train

    loaded = next(bases)
    encode = scoring_encoder(loaded.tokenizer, cfg.policy, cfg.inference, tools)
    model = VerifierModel(loaded.model)
    folder.mkdir(parents=True, exist_ok=True)
    with distributed.stopping() as asked:
        train(
            model,
            encoded(train_on, encode),
            cfg.phase,
            seed=cfg.seed,
            folder=folder,
            stop=asked,
            what="verifier" if folder.name == FINAL else f"verifier fold {folder.name}",
        )
    return model, encode, loaded


def _write(cfg: VerifierSettings, model: VerifierModel, loaded: Loaded, folder: Path) -> None:
    """Write a trained verifier as later stages load it."""
    from r2v.policy.export import export_adapters
    from r2v.verifier.model import save

    if cfg.policy.lora_r > 0:
        export_adapters(loaded, folder)
    save(model, folder, adapted=cfg.policy.lora_r > 0)


def _calibrated(folder: Path, scores: HeldOutScores) -> dict[str, float | None]:
    """Fit the temperature of a written verifier to held-out scores; the figures of these."""
    from r2v.verifier.held_out import fit_temperature, probabilities, report
    from r2v.verifier.labels import balanced
    from r2v.verifier.model import set_temperature

    weights = [example.weight for example in balanced(scores.examples)]
    temperature = fit_temperature(scores.logits, [example.target for example in scores.examples], weights)
    set_temperature(folder, temperature)
    figures = report(scores.examples, probabilities(scores.logits, temperature))
    return {**figures, **scores.controls(), "temperature": temperature}


def _train_as_rank(folder: Path, part: str) -> None:
    """Train a part of the attempt's verifiers as one of the ranks: everything it takes lies in its folder."""
    from r2v.verifier.labels import read_examples

    _, inputs = attempt_of(folder)
    config = c.load(folder / "config.yaml")
    device = distributed.own_device(config.policy.device)
    distributed.join(device)
    cfg = VerifierSettings.of(replace(config, policy=replace(config.policy, device=device)))
    work = Work(folder=folder, fingerprint="", inputs=inputs, root=Path())
    bases, tools = _bases(cfg), _tools(cfg, work)
    train = [example for example in read_examples(folder / part / LABELS) if example.split == "train"]
    for place, some in _verifiers(cfg, train, folder / part):
        _train_one(cfg, bases, some, tools=tools, folder=place)


if __name__ == "__main__":
    sys.exit(distributed.run_rank(lambda: _train_as_rank(Path(sys.argv[1]), sys.argv[2])))
