"""Stage 10, train_hierarchical: an answer, a hint, a better answer; who answers and who hints both learn.

    r2v train_hierarchical --config configs/hierarchical.yaml

Starts from `policy.model_name`, or from this pipeline's bc policy (`hierarchical.start=bc`). Leaves the actor in
final/, a policy like any other, the guidance's weights in guidance/, what was measured in metrics.jsonl and
hierarchical_report.json. A killed run goes on from checkpoint-latest, at the phase it had reached, to the same bits.
Where there are several GPUs (or `training.ranks`) the training is done by one process for each: this module, given
the attempt's folder.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from r2v import config as c
from r2v import distributed
from r2v.errors import InputError
from r2v.hrl.parallel.placement import ranks_of
from r2v.log import logger
from r2v.stages import Stage
from r2v.storage.artifact import Work, attempt_of
from r2v.storage.files import content_sha256

REPORT = "hierarchical_report.json"


@dataclass(frozen=True, kw_only=True)
class HierarchicalSettings:
    """What an actor and its guidance depend on."""

    policy: c.PolicyConfig
    hierarchical: c.HierarchicalConfig
    problems_sha256: str
    """What the file of problems says, so that another content is another artifact."""
    seed: int
    ranks: int | None = field(default=None, metadata=c.RUNTIME)

    @classmethod
    def of(cls, config: c.Config) -> HierarchicalSettings:
        """The parts of the whole configuration that are read here. Raises InputError where the problems are gone."""
        asked = config.hierarchical
        content = replace(asked, enabled=True, problems=replace(asked.problems, path=c.BUNDLED_PROBLEMS))
        return cls(
            policy=config.policy,
            hierarchical=content,
            problems_sha256=_said(asked.problems.path),
            seed=config.seed,
            ranks=config.training.ranks,
        )


def _said(path: str) -> str:
    if path == c.BUNDLED_PROBLEMS:
        return path
    if not Path(path).is_file():
        raise InputError(f"hierarchical.problems.path={path}: no such file; name a JSONL file of problems, or bundled")
    return content_sha256(Path(path))


def run(cfg: HierarchicalSettings, work: Work) -> None:
    """Train here or, where there are several GPUs, by one rank for each (in `split`, for each pair)."""
    ranks = distributed.ranks_for(cfg.ranks, cfg.policy.device)
    if cfg.ranks is None and cfg.hierarchical.placement == "split":
        ranks = ranks_of("split", ranks, None)
    if ranks > 1:
        distributed.launch(ranks, "-m", "r2v.stages.train_hierarchical", str(work.folder))
    else:
        _train(c.load(work.folder / "config.yaml"), work)
    report: dict[str, Any] = json.loads((work.folder / REPORT).read_text())
    work.summary.update(report)
    for line in closing_lines(report):
        logger.info("  %s", line)


def closing_lines(report: dict[str, Any]) -> list[str]:
    """What the held-out problems came to, answer by answer."""
    before, after = report["untrained"], report["trained"]
    return [
        f"{after['problems']} held-out problems, right answers in %: "
        + ", ".join(
            f"answer {turn} {100 * was:.1f} -> {100 * now:.1f}"
            for turn, (was, now) in enumerate(zip(before["accuracy"], after["accuracy"], strict=True), start=1)
        ),
        f"by hints, wrong to right {after['wrong_to_right']}, right to wrong {after['right_to_wrong']}",
    ]


def _train(config: c.Config, work: Work) -> None:
    from r2v.hrl.training.build import build_trainer
    from r2v.policy.export import export
    from r2v.storage.files import write_json

    weights = work.inputs["bc"].file("final") if "bc" in work.inputs else None
    with distributed.stopping() as asked:
        trainer = build_trainer(config, work.folder, weights, stop=asked)
        report = trainer.run()
    actor = trainer.roles.actor_as_policy()
    if distributed.rank() == 0:
        report["weights_sha256"] = export(actor, work.folder / "final")
        write_json(work.folder / REPORT, report)
    distributed.wait_for_all()


def _train_as_rank(folder: Path) -> None:
    """Train the attempt in a folder as one of the ranks: everything it takes lies there."""
    _, inputs = attempt_of(folder)
    config = c.load(folder / "config.yaml")
    config = replace(config, policy=replace(config.policy, device=distributed.own_device(config.policy.device)))
    _train(config, Work(folder=folder, fingerprint="", inputs=inputs, root=Path()))


STAGE = Stage(version=1, settings=HierarchicalSettings, run=run)

if __name__ == "__main__":
    sys.exit(distributed.run_rank(lambda: _train_as_rank(Path(sys.argv[1]))))
