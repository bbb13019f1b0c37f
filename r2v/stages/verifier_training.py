"""Training of the verifiers: one on all tasks, one for each fold without its tasks; in a rank for each GPU.

    report = fit_verifiers(cfg, examples, work)                    # called by the stage
    python -m r2v.stages.verifier_training FOLDER .              # one of its ranks, started by a launch

Ranks train and write checkpoints; the command then loads every trained verifier, fits its temperature and writes it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from r2v import config as c
from r2v import distributed
from r2v.data.manifest import tools_of_runs
from r2v.data.registry import DataRegistry
from r2v.randomness import digest
from r2v.stages import attempt_of_rank
from r2v.storage.artifact import Work
from r2v.storage.integrity import Artifact

if TYPE_CHECKING:
    from r2v.policy.load import Loaded
    from r2v.verifier.held_out import HeldOutScores
    from r2v.verifier.labels import VerifierExample
    from r2v.verifier.model import Encode, VerifierModel
    from r2v.wire.message import ToolSpec

LABELS = "verifier_data.jsonl"
"""File of the labelled actions of both splits."""
VERIFIERS, VALUES = ".", "values"
"""Folders of an attempt: of the verifiers, and of those whose values make labels of temporal differences."""
FINAL = "final"
"""Folder of the verifier of all training tasks; a fold's is named by its number."""

LEFT_OUT = "left_out"
"""Key, in report and summary, of the reason that no verifier was trained."""


@dataclass(frozen=True, kw_only=True)
class VerifierSettings:
    """Settings of a verifier."""

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

    def require_anew(self) -> None:
        """Raise UsageError for a judge that would be the teacher of a collection by the scripted expert."""
        if self.verifier.mode == "llm_judge" or self.verifier.label_sources[0] in ("judge", "consensus"):
            self.teacher.require_judge()

    @classmethod
    def of(cls, config: c.Config) -> VerifierSettings:
        """Return the part of a configuration that verifiers read."""
        return c.sections_of(
            cls,
            config,
            policy=config.policy.trained(),
            inference=config.inference.acting(),
            phase=config.training.phase("verifier"),
            num_folds=config.candidates.num_folds,
            prompt=config.policy.prompt_version,
        )

    @property
    def needs_world(self) -> bool:
        """True if the labels may be executed; recorded outcomes and a judge's scores need no world."""
        return self.verifier.mode != "llm_judge" and self.verifier.label_sources[0] in (
            "auto",
            "corrupted",
            "consensus",
        )

    @property
    def asks_teacher(self) -> bool:
        """True if the labels may need requests to the teacher."""
        return self.verifier.mode == "llm_judge" or self.verifier.label_sources[0] in (
            "judge",
            "corrupted",
            "consensus",
        )


def fold_of(task_id: str, num_folds: int) -> int:
    """Return the fold of a task, whose verifier does not see the task."""
    return int.from_bytes(digest("verifier-fold", task_id)[:4], "big") % num_folds


def fit_verifiers(
    cfg: VerifierSettings, examples: Sequence[VerifierExample], work: Work
) -> dict[str, float | str | None]:
    """Train and calibrate all verifiers of an attempt whose labels are written; return the figures of the final one.
    Without a labelled calibration task they are the figures of the folds' verifiers, which have learnt from fewer
    tasks, each on its own fold, and all have one temperature."""
    from r2v.verifier.held_out import pooled, score_held_out
    from r2v.verifier.labels import in_order

    train = in_order(_trained_by_ranks(cfg, examples, work.folder, VERIFIERS))
    calibration = in_order(example for example in examples if example.split == "calibration")
    held_out = len({example.good for example in calibration}) == 2
    bases, tools = _bases(cfg), _tools(cfg, work)
    places, scored = [], {}
    for folder, part in _verifiers(cfg, train, work.folder):
        model, encode, loaded = _train_one(cfg, bases, part, tools=tools, folder=folder)
        _write(cfg, model, loaded, folder)
        places.append(folder)
        unseen = calibration if held_out else [example for example in train if _own_fold(cfg, example) == folder.name]
        if unseen:
            reported = not held_out or folder.name == FINAL
            scored[folder] = score_held_out(model, unseen, encode, controls=reported)
    if not held_out:
        scored = dict.fromkeys(places, pooled(scored.values()))
    figures = {folder: _calibrated(folder, scores) for folder, scores in scored.items()}
    measured_on = "calibration tasks" if held_out else "training tasks, out of fold"
    return {"measured_on": measured_on, **figures[work.folder / FINAL]}


def lacking(cfg: VerifierSettings, examples: Sequence[VerifierExample]) -> str | None:
    """Return the reason that a verifier cannot be trained on these labels, in one line; None if all can."""
    train = [example for example in examples if example.split == "train"]
    good = sum(example.good for example in train)
    why = "a verifier learns from both"
    if 0 < good < len(train):
        labels = ({one.good for one in train if _own_fold(cfg, one) != str(fold)} for fold in range(cfg.num_folds))
        if all(len(kinds) == 2 for kinds in labels):
            return None
        why = "those of one kind stand in too few tasks to leave any of these out"
    return (
        f"{good} good actions and {len(train) - good} bad ones: {why}; verifier.label_sources=[corrupted] executes "
        "wrong actions, which asks the teacher: auto does so where teacher.max_usd is set and worlds can be branched"
    )


def trained(artifact: Artifact | None, part: str = FINAL) -> Path | None:
    """Return the folder of a verifier in an artifact of this stage; None if it was left out, or the chain has none."""
    return None if artifact is None or LEFT_OUT in artifact.summary else artifact.file(part)


def values_out_of_fold(cfg: VerifierSettings, examples: Sequence[VerifierExample], work: Work) -> list[float]:
    """Return the value (examples,) of each example by a verifier of these targets that has not seen its task: for a
    training task its fold's, for any other the one of all training tasks.

    Folds are not nested: the labels of fold k's final verifier are values of models that saw fold k's outcomes, so its
    scores of fold k are not wholly out of sample.
    """
    from r2v.verifier.held_out import probabilities, readings_of
    from r2v.verifier.labels import read_examples, write_examples

    folder, values = work.folder / VALUES, [0.0] * len(examples)
    folder.mkdir(exist_ok=True)
    write_examples(folder / LABELS, examples)
    train = _trained_by_ranks(cfg, read_examples(folder / LABELS), work.folder, VALUES)
    names = [_own_fold(cfg, example) if example.split == "train" else FINAL for example in examples]
    bases, tools = _bases(cfg), _tools(cfg, work)
    for target, part in _verifiers(cfg, train, folder):
        own = [at for at, name in enumerate(names) if name == target.name]
        if not own:
            continue
        model, encode, _ = _train_one(cfg, bases, part, tools=tools, folder=target)
        logits = readings_of(model, [examples[at] for at in own], encode).logits
        for at, value in zip(own, probabilities(logits, 1.0), strict=True):
            values[at] = value
    return values


def _own_fold(cfg: VerifierSettings, example: VerifierExample) -> str:
    """Return the name of a training example's fold."""
    return str(fold_of(example.task_id, cfg.num_folds))


def _trained_by_ranks(
    cfg: VerifierSettings, examples: Sequence[VerifierExample], folder: Path, part: str
) -> list[VerifierExample]:
    """Return the training examples, after several ranks, if configured, have trained each verifier to a checkpoint."""
    ranks = distributed.ranks_for(cfg.phase.ranks, cfg.policy.device)
    if ranks > 1:
        distributed.launch(ranks, "-m", "r2v.stages.verifier_training", str(folder), part)
    return [example for example in examples if example.split == "train"]


def _tools(cfg: VerifierSettings, work: Work) -> tuple[ToolSpec, ...]:
    """Return the tools in the verifier's prompts, as in the policy's: those recorded with the runs."""
    from r2v.policy.training_tools import of_fresh_world, tool_specs

    if cfg.policy.tools != "auto":
        return ()
    registry = DataRegistry(work.root / "data")
    recorded = tools_of_runs([registry.get(run_id) for run_id in work.inputs["collect"].summary["run_ids"]])
    return tool_specs(of_fresh_world(cfg.env) if recorded is None else recorded)


def _bases(cfg: VerifierSettings) -> Iterator[Loaded]:
    """Yield a model to train for each verifier: one base with new adapters each time, or whole weights loaded anew."""
    from r2v.policy.load import load_policy, with_fresh_adapters

    loaded = load_policy(cfg.policy, for_training=True, seed=cfg.seed)
    while True:
        yield loaded
        if cfg.policy.lora_r > 0:
            loaded = with_fresh_adapters(loaded, cfg.policy, cfg.seed)
        else:
            del loaded  # free the memory before the next is loaded
            loaded = load_policy(cfg.policy, for_training=True, seed=cfg.seed)


def _verifiers(
    cfg: VerifierSettings, train: Sequence[VerifierExample], folder: Path
) -> Iterator[tuple[Path, Sequence[VerifierExample]]]:
    """Yield every verifier's folder and its at most `training.verifier.max_examples` examples: final, then folds."""
    from r2v.policy.training.fit import draw_rows

    learns = {FINAL: list(train)}
    for fold in range(cfg.num_folds):
        learns[f"folds/{fold}"] = [example for example in train if _own_fold(cfg, example) != str(fold)]
    for name, examples in learns.items():
        rows = draw_rows(len(examples), cfg.phase.max_examples, cfg.seed)
        yield folder / name, [examples[row] for row in rows]


def _train_one(
    cfg: VerifierSettings,
    bases: Iterator[Loaded],
    train_on: Sequence[VerifierExample],
    *,
    tools: tuple[ToolSpec, ...],
    folder: Path,
) -> tuple[VerifierModel, Encode, Loaded]:
    """Train one verifier, or load it if its folder has it trained."""
    from r2v.rollout.model_factory import scoring_encoder
    from r2v.verifier.model import VerifierModel
    from r2v.verifier.train import encoded, train

    loaded = next(bases)
    encode = scoring_encoder(loaded.tokenizer, cfg.policy, cfg.inference, tools)
    model = VerifierModel(loaded.model)
    folder.mkdir(parents=True, exist_ok=True)
    with distributed.stopping() as stop:
        train(
            model,
            encoded(train_on, encode),
            cfg.phase,
            seed=cfg.seed,
            folder=folder,
            stop=stop,
            what="verifier" if folder.name == FINAL else f"verifier fold {folder.name}",
        )
    return model, encode, loaded


def _write(cfg: VerifierSettings, model: VerifierModel, loaded: Loaded, folder: Path) -> None:
    """Write a trained verifier in the format that later stages load."""
    from r2v.policy.export import export_adapters
    from r2v.verifier.model import save

    if cfg.policy.lora_r > 0:
        export_adapters(loaded, folder)
    save(model, folder, adapted=cfg.policy.lora_r > 0)


def _calibrated(folder: Path, scores: HeldOutScores) -> dict[str, float | None]:
    """Fit the temperature of a written verifier to held-out scores; return their figures."""
    from r2v.verifier.held_out import fit_temperature, probabilities, report
    from r2v.verifier.labels import balanced
    from r2v.verifier.model import set_temperature

    weights = [example.weight for example in balanced(scores.examples)]
    temperature = fit_temperature(scores.logits, [example.target for example in scores.examples], weights)
    set_temperature(folder, temperature)
    figures = report(scores.examples, probabilities(scores.logits, temperature))
    return {**figures, **scores.controls(), "temperature": temperature}


def _train_as_rank(folder: Path, part: str) -> None:
    """Train a part of the attempt's verifiers as one of the ranks, by the folder's configuration and inputs."""
    from r2v.verifier.labels import read_examples

    _, config, work = attempt_of_rank(folder)
    distributed.join(config.policy.device)
    cfg = VerifierSettings.of(config)
    bases, tools = _bases(cfg), _tools(cfg, work)
    train = [example for example in read_examples(folder / part / LABELS) if example.split == "train"]
    for target, some in _verifiers(cfg, train, folder / part):
        _train_one(cfg, bases, some, tools=tools, folder=target)


if __name__ == "__main__":
    sys.exit(distributed.run_rank(lambda: _train_as_rank(Path(sys.argv[1]), sys.argv[2])))
