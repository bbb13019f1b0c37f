"""Stage 9, ablation study: one part is taken away, what depends on it is made again, and both play the same tasks.

    r2v ablations --config configs/mrp.yaml --names no_dpo with_verifier

An ablation is a set of configuration overrides and nothing else. Artifacts are found by fingerprint, so each
row makes again exactly the stages downstream of its change; `retrained_stages` lists them. Rows are paired by
task with the unchanged pipeline; `none` changes nothing and must give its bytes. Helpers make whole parts of it: one
row's policy is trained by one process while another plays a second row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from r2v import config as c
from r2v.errors import UsageError, nearest
from r2v.experiments.ablation_table import ABLATION_ROWS, LEARNED_PARTS
from r2v.stages import Stage
from r2v.storage.artifact import Work
from r2v.storage.files import write_json
from r2v.storage.integrity import Artifact

if TYPE_CHECKING:
    from r2v.data.store import StoredEpisodes


@dataclass(frozen=True, kw_only=True)
class AblationsSettings:
    """An ablation study depends on every other stage of the chain."""

    whole: c.Config

    @classmethod
    def of(cls, config: c.Config) -> AblationsSettings:
        """The whole configuration but for hierarchical training, which nothing here reads. Raises UsageError for a
        name that is no ablation's."""
        for name in config.ablations.names:
            if name not in ABLATION_ROWS:
                raise UsageError(f"ablations.names: {name}; {nearest(name, ABLATION_ROWS)}")
        return cls(whole=replace(config, hierarchical=c.HierarchicalConfig()))


_BASE = "base"


def play(cfg: AblationsSettings, work: Work) -> dict[str, dict[str, Artifact]]:
    """Make the chain of the base and of every ablation, beside whoever else makes them; job -> artifact of each."""
    from r2v.experiments.shared_chains import make_chains

    names = [_BASE, *cfg.whole.ablations.names]
    return make_chains(dict(zip(names, chains_of(cfg.whole), strict=True)), root=work.root)


def run(cfg: AblationsSettings, work: Work) -> None:
    """Play the base and every ablation, and write structured_results/ablations.csv and earns_its_place.csv."""
    from r2v.evaluation.tables.ablation_rows import ablation_rows, earnings, write_ablations

    rows = [ABLATION_ROWS[name] for name in cfg.whole.ablations.names]
    made = play(cfg, work)
    base_made = made.pop(_BASE)
    table = ablation_rows(
        cfg.whole.env.benchmark,
        _condition(cfg.whole),
        cfg.whole.evaluation.bootstrap,
        [
            (
                row,
                _episodes(cfg.whole, base_made["evaluate"], row.base_method),
                _episodes(cfg.whole, made[row.name]["evaluate"], row.ablated_method),
                [
                    job
                    for job, artifact in made[row.name].items()
                    if job != "evaluate" and artifact.fingerprint != base_made[job].fingerprint
                ],
            )
            for row in rows
        ],
    )
    write_ablations(work.folder / "structured_results", table, earnings(table, LEARNED_PARTS))
    write_json(work.folder / "changes.json", {row.name: list(row.overrides) for row in rows})
    played = {
        f"{job}-{artifact.fingerprint}" for chain in (base_made, *made.values()) for job, artifact in chain.items()
    }
    work.summary.update(rows=len(table), artifacts=sorted(played))


def _condition(config: c.Config) -> str:
    return "noisy" if "noisy" in config.evaluation.conditions else config.evaluation.conditions[0]


def chains_of(config: c.Config) -> list[c.Config]:
    """The configurations that are evaluated: of the base, then of each ablation in `ablations.names`."""
    rows = [ABLATION_ROWS[name] for name in config.ablations.names]
    base = _evaluated(config, config, sorted({row.base_method for row in rows}))
    return [base, *(_evaluated(_changed(config, row.overrides), config, [row.ablated_method]) for row in rows)]


def _evaluated(changed: c.Config, config: c.Config, methods: list[str]) -> c.Config:
    """The changed configuration, evaluated by these methods under the one condition of the study."""
    seeds, conditions = changed.ablations.seeds, [_condition(config)]
    evaluation = replace(
        changed.evaluation,
        methods=methods,
        seeds=seeds,
        conditions=conditions,
        budgets=[],  # neither a frontier nor executed gains: the rows compare episodes
        gains_tasks=0,
    )
    return replace(changed, evaluation=evaluation)


def _changed(config: c.Config, overrides: tuple[str, ...]) -> c.Config:
    from omegaconf import OmegaConf

    merged = OmegaConf.merge(OmegaConf.structured(config), OmegaConf.from_dotlist(list(overrides)))
    changed = OmegaConf.to_object(merged)
    assert isinstance(changed, c.Config)
    return changed


def _episodes(config: c.Config, artifact: Artifact, method: str) -> StoredEpisodes:
    from r2v.data.store import StoredEpisodes
    from r2v.evaluation.setup import episodes_path

    path = episodes_path(artifact.folder, _condition(config), method)
    return StoredEpisodes(artifact.file(path.relative_to(artifact.folder).as_posix()))


STAGE = Stage(version=2, settings=AblationsSettings, run=run, chains=chains_of, play=play)
