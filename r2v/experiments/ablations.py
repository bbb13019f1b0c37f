"""Stage 9, ablation study: one part is taken away, what depends on it is made again, and both play the same tasks.

    r2v ablations --config configs/mrp.yaml --names no_dpo with_verifier

An ablation is a set of configuration overrides and nothing else (`r2v.config.methods`). Artifacts are found by
fingerprint, so each row makes again exactly the stages downstream of its change; `retrained_stages` lists them. Rows
are paired by task with the unchanged pipeline, in the same worlds; `none` changes nothing and must give its bytes. A
row that could only be one of zeros is left out (`r2v.experiments.ablation_reach`). Helpers make whole parts of it: one
row's policy is trained by one process while another plays a second row.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from r2v import config as c
from r2v.config.methods import ALL_ROWS, ROUTERS, STRONG, WEAK, Ablation, registry
from r2v.config.yaml_text import as_type, read
from r2v.constraints import hints_of
from r2v.errors import UsageError
from r2v.experiments.ablation_reach import why_left_out
from r2v.log import logger
from r2v.stages import Stage
from r2v.storage.artifact import ATTEMPT, Work
from r2v.storage.artifact_manifest import ARTIFACT_MANIFEST
from r2v.storage.files import write_json, writing
from r2v.storage.integrity import CONFIGURATION, Artifact

if TYPE_CHECKING:
    from r2v.evaluation.measures.outcomes import Measured

CHANGES, EVALUATIONS = "changes.json", "evaluations"


@dataclass(frozen=True, kw_only=True)
class AblationsSettings:
    """An ablation study depends on every other stage of the chain."""

    whole: c.Config
    """All but hierarchical training, which nothing here reads."""
    rows: list[str]
    """Names of the rows that this configuration can tell anything of."""

    @classmethod
    def of(cls, config: c.Config) -> AblationsSettings:
        """Of the whole configuration. Raises UsageError as `rows_of` does."""
        rows = [row.name for row in rows_of(config)]
        return cls(whole=replace(config, hierarchical=c.HierarchicalConfig()), rows=rows)

    @property
    def studied(self) -> list[Ablation]:
        """The rows themselves."""
        return [registry().rows[name] for name in self.rows]


@dataclass(frozen=True, kw_only=True)
class RowSides:
    """A row of changes.json: its overrides, and where the evaluations of its sides lie in the study's folder."""

    ablated: list[str]
    both: list[str]
    base_evaluation: str
    ablated_evaluation: str

    @property
    def evaluations(self) -> tuple[str, str]:
        """Of the base, and without the part."""
        return self.base_evaluation, self.ablated_evaluation


def rows_of(config: c.Config) -> list[Ablation]:
    """The rows of the study: those of `ablations.names` that this configuration can tell anything of. Raises UsageError
    where that is none, or where one that is named cannot be made."""
    reasons = {row: left_out(config, row) for row in config.ablations.rows}
    rows = [row for row, reason in reasons.items() if reason is None]
    if not rows:
        said = "; ".join(f"{row.name}: {reason}" for row, reason in reasons.items())
        raise UsageError(f"ablations.names: no row is left ({said}); name others")
    return rows


def left_out(config: c.Config, row: Ablation) -> str | None:
    """Why the study leaves a row out, if it does. Raises UsageError for one that is named and cannot be made."""
    try:
        base, changed = (_changed(config, overrides) for overrides in (row.shared, (*row.shared, *row.overrides)))
        return why_left_out(row, base, changed)
    except UsageError as error:
        if config.ablations.names != [ALL_ROWS]:
            raise UsageError(f"ablation {row.name}: {error}") from None
        return str(error)


def play(cfg: AblationsSettings, work: Work) -> dict[str, dict[str, Artifact]]:
    """Make the chain of every base and of every ablation, beside whoever else makes them; job -> artifact of each."""
    from r2v.experiments.shared_chains import make_chains

    return make_chains(_chains(cfg.whole, cfg.studied), root=work.root)


def run(cfg: AblationsSettings, work: Work) -> None:
    """Play the bases and every ablation, keep each evaluation in `evaluations/`, and write from these
    structured_results/ablations.csv and earns_its_place.csv."""
    for row in cfg.whole.ablations.rows:
        if row.name not in cfg.rows:
            logger.warning("  ablation %s is left out: %s", row.name, left_out(cfg.whole, row))
    from r2v.evaluation.tables.files import write_results

    made = play(cfg, work)
    for chain in made.values():
        _keep(chain["evaluate"], work.folder)
    changes = changes_of(cfg, {name: chain["evaluate"].fingerprint for name, chain in made.items()})
    write_json(work.folder / CHANGES, {name: asdict(change) for name, change in changes.items()})
    retrained = {name: _retrained(made[base_name(cfg.whole, registry().rows[name])], made[name]) for name in cfg.rows}
    write_results(work.folder / "structured_results", tables_of(cfg, work.folder, changes, retrained))
    played = {f"{job}-{artifact.fingerprint}" for chain in made.values() for job, artifact in chain.items()}
    work.summary.update(rows=len(cfg.rows), artifacts=sorted(played))


def changes_of(cfg: AblationsSettings, evaluated: Mapping[str, str]) -> dict[str, RowSides]:
    """Return the content of changes.json, by row. evaluated: fingerprint of the evaluation of each base and each row,
    by name."""
    return {
        row.name: RowSides(
            ablated=list(row.overrides),
            both=list(row.shared),
            base_evaluation=f"{EVALUATIONS}/{evaluated[base_name(cfg.whole, row)]}",
            ablated_evaluation=f"{EVALUATIONS}/{evaluated[row.name]}",
        )
        for row in cfg.studied
    }


def tables_of(
    cfg: AblationsSettings, folder: Path, changes: Mapping[str, RowSides], retrained: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """Return the text of each table, built from the evaluations in a study's folder. retrained: of each row, the jobs
    whose artifact is not the base's."""
    from r2v.evaluation.tables.ablation_rows import ablation_rows, ablation_texts, earnings

    measured = {place: _measured(folder / place) for change in changes.values() for place in change.evaluations}
    played = []
    for row in cfg.studied:
        base, ablated = (measured[place] for place in changes[row.name].evaluations)
        played.append((row, _condition(cfg.whole, row), base, ablated, retrained[row.name]))
    table = ablation_rows(played)
    return ablation_texts(table, earnings(table, registry().learned_parts))


def _keep(evaluated: Artifact, folder: Path) -> None:
    """Put an evaluation into the study's folder, so that its tables can be audited from there alone; by hard links
    where the file system has them, for a finished artifact is replaced and never written into."""
    kept = folder / EVALUATIONS / evaluated.fingerprint
    for name in (*evaluated.files, ARTIFACT_MANIFEST, ATTEMPT, CONFIGURATION):
        target = kept / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)  # of an attempt that was killed
        try:
            os.link(evaluated.folder / name, target)
        except OSError:
            with writing(target):
                shutil.copyfile(evaluated.folder / name, target)


def _retrained(base: dict[str, Artifact], ablated: dict[str, Artifact]) -> list[str]:
    """The jobs whose artifact is not the base's."""
    return [
        job
        for job, artifact in ablated.items()
        if job != "evaluate" and (job not in base or artifact.fingerprint != base[job].fingerprint)
    ]


def _condition(config: c.Config, row: Ablation) -> str:
    """What both sides of a row play under."""
    usual = "noisy" if "noisy" in config.evaluation.conditions else config.evaluation.conditions[0]
    return row.condition or usual


def chains_of(config: c.Config) -> list[c.Config]:
    """The configurations that are evaluated: the bases, then each ablation of `ablations.names`."""
    return list(_chains(config, rows_of(config)).values())


def sides_of(cfg: AblationsSettings) -> dict[str, tuple[c.Config, c.Config]]:
    """Return the configurations that each row's base and its ablated side are evaluated by."""
    chains = _chains(cfg.whole, cfg.studied)
    return {row.name: (chains[base_name(cfg.whole, row)], chains[row.name]) for row in cfg.studied}


def _chains(config: c.Config, rows: Sequence[Ablation]) -> dict[str, c.Config]:
    """The same by name. Rows whose sides share overrides and condition are compared with one base."""
    methods: dict[str, list[str]] = {}
    for row in rows:
        methods.setdefault(base_name(config, row), []).append(row.base_method)
    bases = {
        name: _evaluated(_changed(config, row.shared), _condition(config, row), methods[name])
        for row in reversed(rows)
        for name in [base_name(config, row)]
    }
    ablated = {
        row.name: _evaluated(
            _changed(config, (*row.shared, *row.overrides)), _condition(config, row), [row.ablated_method]
        )
        for row in rows
    }
    return {**dict(reversed(bases.items())), **ablated}


def base_name(config: c.Config, row: Ablation) -> str:
    """Return the name of the base that a row is compared with; rows of one base share its evaluation."""
    return " ".join(("base", *row.shared, _condition(config, row)))


def _evaluated(changed: c.Config, condition: str, methods: Sequence[str]) -> c.Config:
    """The changed configuration, evaluated by these methods under this condition: by routed ones at the study's
    operating points too, for APGR between the two ends."""
    budgets = changed.ablations.budgets if set(methods) & set(ROUTERS) else []
    ends = [WEAK, STRONG] if budgets else []
    evaluation = replace(
        changed.evaluation,
        methods=sorted({*methods, *ends}),
        seeds=changed.ablations.seeds,
        conditions=[condition],
        budgets=budgets,
        gains_tasks=0,
    )
    return replace(changed, evaluation=evaluation)


def _changed(config: c.Config, overrides: Sequence[str]) -> c.Config:
    """The configuration under these overrides."""
    for override in overrides:
        key, _, text = override.partition("=")
        config = _with_key(config, key.split("."), read(text, override).value)
    return config


def _with_key(section: Any, path: Sequence[str], written: Any) -> Any:
    name, *rest = path
    if rest:
        return replace(section, **{name: _with_key(getattr(section, name), rest, written)})
    return replace(section, **{name: as_type(written, hints_of(cast(Any, type(section)))[name])})


def _measured(folder: Path) -> Measured:
    """Outcomes of the episodes of an evaluation."""
    from r2v.evaluation.measures.outcomes import measure
    from r2v.evaluation.setup import read_setup, stored_episodes

    setup = read_setup(folder)
    return measure(stored_episodes(folder, setup), setup)


STAGE = Stage(version=5, settings=AblationsSettings, run=run, chains=chains_of, play=play)
