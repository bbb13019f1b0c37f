"""Stage 10, train_hierarchical: reinforcement learning of an actor and of the guidance model that gives it hints.

    r2v train_hierarchical --config configs/hierarchical.yaml

Starts from `policy.model_name`, or from this pipeline's bc policy (`hierarchical.start=bc`). Writes the actor into
final/, in the format of every policy (and the best one into best/, if an earlier evaluation was better), metrics.jsonl
and hierarchical_report.json. A killed run resumes from checkpoint-latest, in the phase it had reached, with the same
bits. With several GPUs (or `training.ranks`) one process for each trains: this module, given the attempt's folder.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from r2v import config as c
from r2v import distributed
from r2v.config.engines import LOCAL
from r2v.constraints import IF_GIVEN
from r2v.errors import InputError, UsageError
from r2v.extensions import is_dotted, source_sha256
from r2v.hrl.parallel.placement import split_ranks
from r2v.log import logger
from r2v.stages import Stage, attempt_of_rank
from r2v.storage.artifact import Work
from r2v.storage.files import content_sha256
from r2v.storage.removal import ATTEMPT_PART, remove_own

REPORT = "hierarchical_report.json"
BEST = "best"
"""Folder of the best actor on the held-out problems, if that is not the last."""
_CHECKER_KEY, _REWARD_KEY = "hierarchical.problems.checker", "hierarchical.guidance.reward"


@dataclass(frozen=True, kw_only=True)
class PlayedTasks:
    """Settings of problems that are states of tasks."""

    env: c.EnvConfig
    perturbations: c.PerturbationsConfig
    inference: c.InferenceConfig
    tasks: c.TaskSelection


@dataclass(frozen=True, kw_only=True)
class HierarchicalSettings:
    """Settings of an actor and its guidance."""

    policy: c.PolicyConfig
    hierarchical: c.HierarchicalConfig
    problems_sha256: str
    """Hash of the file of problems, so that other content gives another artifact."""
    seed: int
    ranks: int | None = field(default=None, metadata=c.RUNTIME)
    played: PlayedTasks | None = field(default=None, metadata=IF_GIVEN)
    """None if the problems are texts and nothing is played."""

    def require_possible(self) -> None:
        """Raise UsageError for an engine that cannot load the weights in training."""
        self.policy.require_servable()
        h, engine = self.hierarchical, self.policy.engine
        if engine != LOCAL and h.start == "bc":
            raise UsageError(
                f"policy.engine={engine}: under hierarchical.start=bc the clone is merged into the base, which no "
                "server holds; set policy.engine=local, or hierarchical.start=model"
            )
        if engine != LOCAL and h.shards != "none":
            raise UsageError(
                f"policy.engine={engine}: under hierarchical.shards={h.shards} no rank has adapters that a server "
                "could be sent; set policy.engine=local, or hierarchical.shards=none"
            )

    @classmethod
    def of(cls, config: c.Config) -> HierarchicalSettings:
        """Return the part of a configuration that the stage reads. Raise InputError without the problems' file."""
        h = config.hierarchical
        # The content of the files enters the fingerprint; their paths and `enabled` change nothing.
        checker, reward = _with_source(_CHECKER_KEY, h.problems.checker), h.guidance.reward
        content = replace(
            h,
            enabled=True,
            problems=replace(h.problems, path=c.BUNDLED_PROBLEMS, checker=checker),
            guidance=replace(h.guidance, reward=reward and _with_source(_REWARD_KEY, reward)),
        )
        return cls(
            policy=replace(config.policy, engine_verifier=False),
            hierarchical=content,
            problems_sha256=_content_of(h.problems.path),
            seed=config.seed,
            ranks=config.training.ranks,
            played=_played(config) if h.problems.path == c.TASK_PROBLEMS else None,
        )


def _played(config: c.Config) -> PlayedTasks:
    return PlayedTasks(
        env=config.env,
        perturbations=config.perturbations,
        inference=config.inference.acting(),
        tasks=c.TaskSelection.training(config),
    )


def _with_source(key: str, name: str) -> str:
    """Return a checker's or reward's name, with the hash of its file if it is one's own: an edit is another one."""
    return f"{name} {source_sha256(key, name)}" if is_dotted(name) else name


def _content_of(path: str) -> str:
    if path in (c.BUNDLED_PROBLEMS, c.TASK_PROBLEMS):
        return path
    if not Path(path).is_file():
        raise InputError(
            f"hierarchical.problems.path={path}: no such file; name a JSONL file of problems, bundled or tasks"
        )
    return content_sha256(Path(path))


def run(cfg: HierarchicalSettings, work: Work) -> None:
    """Train in this process or, with several GPUs, in a rank for each (with placement `split`, for each pair)."""
    ranks = distributed.ranks_for(cfg.ranks, cfg.policy.device)
    if cfg.ranks is None and cfg.hierarchical.placement == "split":
        ranks = split_ranks(ranks)
    if ranks > 1:
        distributed.launch(ranks, "-m", "r2v.stages.train_hierarchical", str(work.folder))
    else:
        _train(c.load(work.folder / "config.yaml"), work)
    report: dict[str, Any] = json.loads((work.folder / REPORT).read_text())
    work.summary.update({name: value for name, value in report.items() if name != "samples"})
    for line in closing_lines(report):
        logger.info("  hierarchical: result=%s", line)


def closing_lines(report: dict[str, Any]) -> list[str]:
    """Return the accuracy on the held-out problems before and after training, answer by answer, in lines."""
    before, after = report["untrained"], report["trained"]
    return [
        f"{after['problems']} held-out problems, right answers in %: "
        + ", ".join(
            f"answer {turn} {100 * was:.1f} -> {100 * now:.1f}"
            for turn, (was, now) in enumerate(zip(before["accuracy"], after["accuracy"], strict=True), start=1)
        ),
        f"by hints, wrong to right {after['wrong_to_right']}, right to wrong {after['right_to_wrong']}; "
        f"best last answer {100 * report['best']['accuracy']:.1f} after iteration {report['best']['iteration']}",
    ]


def _train(config: c.Config, work: Work) -> None:
    from r2v.hrl.models.served import SERVED
    from r2v.hrl.training.build import build_trainer
    from r2v.policy.export import export
    from r2v.policy.load import device_of
    from r2v.policy.precision import tf32
    from r2v.storage.files import write_json

    weights = work.inputs["bc"].file("final") if "bc" in work.inputs else None
    with distributed.stopping() as stop, tf32(device_of(config.policy).startswith("cuda")):
        trainer = build_trainer(config, work.folder, weights, stop=stop, root=work.root)
        try:
            report = trainer.run()
        finally:
            if trainer.roles.served is not None:
                trainer.roles.served.close()
    actor, best = trainer.roles.actor_as_policy(), trainer.state.best
    if distributed.rank() == 0:
        report["weights_sha256"] = export(actor, work.folder / "final")
        if best.iteration < report["iterations"] and trainer.roles.sharded:
            logger.warning("  hierarchical: only the last actor is exported from shards: best=%s", best)
        elif best.iteration < report["iterations"]:
            trainer.roles.load("actor", best.weights)
            report["best"]["weights_sha256"] = export(trainer.roles.actor_as_policy(), work.folder / BEST)
        write_json(work.folder / REPORT, report)
    distributed.wait_for_all()
    if distributed.rank() == 0:  # a killed attempt may have had more ranks
        remove_own(work.folder / SERVED, ATTEMPT_PART)


def _train_as_rank(folder: Path) -> None:
    """Train the attempt in a folder as one of the ranks, by its recorded configuration and inputs."""
    _, config, work = attempt_of_rank(folder)
    _train(config, work)


STAGE = Stage(version=3, settings=HierarchicalSettings, run=run)

if __name__ == "__main__":
    sys.exit(distributed.run_rank(lambda: _train_as_rank(Path(sys.argv[1]))))
