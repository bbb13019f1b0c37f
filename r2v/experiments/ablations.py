"""Stage 9, ablation study: each row removes one part, retrains its dependents and plays the same tasks as its base.

    r2v ablations --config configs/mrp.yaml --names no_dpo with_verifier

An ablation is a set of configuration overrides and nothing else (`r2v.config.methods`). Artifacts are found by
fingerprint, so each row repeats exactly the stages downstream of its change; `retrained_stages` lists them. Rows are
paired by task with the unchanged pipeline, in the same environments; `none` changes nothing and must give its bytes. A
row that is zero by construction is left out (`why_left_out`). Helpers make whole parts of it: one process trains one
row's policy while another plays a second row.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from r2v import config as c
from r2v.config import Config, identity
from r2v.config.methods import ALL_ROWS, CLONE, METHODS, ROUTERS, STRONG, WEAK, Ablation, registry
from r2v.config.yaml_text import as_type, read
from r2v.constraints import hints_of
from r2v.errors import UsageError
from r2v.extensions import is_dotted, may_import
from r2v.log import logger
from r2v.pipeline.graph import as_configured
from r2v.pipeline.jobs import JOBS, job
from r2v.pipeline.rows import Job
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
    """Settings of an ablation study, which depends on every other stage of the chain."""

    whole: c.Config
    """Configuration without hierarchical training, which no row reads."""
    rows: list[str]
    """Names of the rows that can differ from zero under this configuration."""

    @classmethod
    def of(cls, config: c.Config) -> AblationsSettings:
        """Return the study's settings of a configuration. Raise UsageError as `rows_of` does."""
        rows = [row.name for row in rows_of(config)]
        return cls(whole=replace(config, hierarchical=c.HierarchicalConfig()), rows=rows)

    @property
    def studied(self) -> list[Ablation]:
        """Rows of the study."""
        return [registry().rows[name] for name in self.rows]


@dataclass(frozen=True, kw_only=True)
class RowSides:
    """Row of changes.json: its overrides, and the paths of its two evaluations in the study's folder."""

    ablated: list[str]
    both: list[str]
    base_evaluation: str
    ablated_evaluation: str

    @property
    def evaluations(self) -> tuple[str, str]:
        """Paths of the base's and the ablated evaluation."""
        return self.base_evaluation, self.ablated_evaluation


def rows_of(config: c.Config) -> list[Ablation]:
    """Return the rows of `ablations.names` that can differ from zero under this configuration. Raise UsageError if no
    row can, or a named one cannot be made."""
    reasons = {row: left_out(config, row) for row in config.ablations.rows}
    rows = [row for row, reason in reasons.items() if reason is None]
    if not rows:
        listed = "; ".join(f"{row.name}: {reason}" for row, reason in reasons.items())
        raise UsageError(f"ablations.names: no row is left ({listed}); name others")
    return rows


def left_out(config: c.Config, row: Ablation) -> str | None:
    """Return the reason why the study omits a row, or None. Raise UsageError for a named row that cannot be made."""
    try:
        base, changed = (_changed(config, overrides) for overrides in (row.shared, (*row.shared, *row.overrides)))
        return why_left_out(row, base, changed)
    except UsageError as error:
        if config.ablations.names != [ALL_ROWS]:
            raise UsageError(f"ablation {row.name}: {error}") from None
        return str(error)


def play(cfg: AblationsSettings, work: Work) -> dict[str, dict[str, Artifact]]:
    """Make the chains of all bases and ablations, shared with other processes; return job -> artifact of each."""
    from r2v.experiments.shared_chains import make_chains

    return make_chains(_chains(cfg.whole, cfg.studied), root=work.root)


def run(cfg: AblationsSettings, work: Work) -> None:
    """Play all bases and ablations, copy each evaluation to `evaluations/`, and write structured_results/ablations.csv
    and earns_its_place.csv from these."""
    for row in cfg.whole.ablations.rows:
        if row.name not in cfg.rows:
            logger.warning("  ablation omitted: row=%s reason=%s", row.name, left_out(cfg.whole, row))
    from r2v.evaluation.tables.files import write_results

    chains = play(cfg, work)
    for chain in chains.values():
        _keep(chain["evaluate"], work.folder)
    changes = changes_of(cfg, {name: chain["evaluate"].fingerprint for name, chain in chains.items()})
    write_json(work.folder / CHANGES, {name: asdict(change) for name, change in changes.items()})
    bases = {row.name: chains[base_name(cfg.whole, row)] for row in cfg.studied}
    retrained = {name: _retrained(bases[name], chains[name]) for name in cfg.rows}
    write_results(work.folder / "structured_results", tables_of(cfg, work.folder, changes, retrained))
    played = {f"{job}-{artifact.fingerprint}" for chain in chains.values() for job, artifact in chain.items()}
    work.summary.update(rows=len(cfg.rows), artifacts=sorted(played))


def changes_of(cfg: AblationsSettings, evaluated: Mapping[str, str]) -> dict[str, RowSides]:
    """Return the content of changes.json by row. `evaluated`: name of each base and row -> fingerprint of its
    evaluation."""
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
    """Return the text of each table, built from the evaluations in a study's folder. `retrained`: row -> jobs whose
    artifact differs from the base's."""
    from r2v.evaluation.tables.ablation_rows import ablation_rows, ablation_texts, earnings

    measured = {path: _measured(folder / path) for change in changes.values() for path in change.evaluations}
    played = []
    for row in cfg.studied:
        base, ablated = (measured[path] for path in changes[row.name].evaluations)
        played.append((row, _condition(cfg.whole, row), base, ablated, retrained[row.name]))
    table = ablation_rows(played)
    return ablation_texts(table, earnings(table, registry().learned_parts))


def _keep(evaluated: Artifact, folder: Path) -> None:
    """Copy an evaluation into the study's folder, so that its tables can be audited from that folder alone. Hard links
    are safe: a finished artifact is replaced, never written."""
    copy = folder / EVALUATIONS / evaluated.fingerprint
    for name in (*evaluated.files, ARTIFACT_MANIFEST, ATTEMPT, CONFIGURATION):
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)  # left by a killed attempt
        try:
            os.link(evaluated.folder / name, target)
        except OSError:  # another disk, or a file system without hard links
            with writing(target):
                shutil.copyfile(evaluated.folder / name, target)


def _retrained(base: dict[str, Artifact], ablated: dict[str, Artifact]) -> list[str]:
    """Return the jobs whose artifact differs from the base's."""
    return [
        job
        for job, artifact in ablated.items()
        if job != "evaluate" and (job not in base or artifact.fingerprint != base[job].fingerprint)
    ]


def _condition(config: c.Config, row: Ablation) -> str:
    """Return the condition that both sides of a row play under."""
    usual = "noisy" if "noisy" in config.evaluation.conditions else config.evaluation.conditions[0]
    return row.condition or usual


def chains_of(config: c.Config) -> list[c.Config]:
    """Return the evaluated configurations: the bases, then each ablation of `ablations.names`."""
    return list(_chains(config, rows_of(config)).values())


def sides_of(cfg: AblationsSettings) -> dict[str, tuple[c.Config, c.Config]]:
    """Return row -> configurations of its base and its ablated side."""
    chains = _chains(cfg.whole, cfg.studied)
    return {row.name: (chains[base_name(cfg.whole, row)], chains[row.name]) for row in cfg.studied}


def _chains(config: c.Config, rows: Sequence[Ablation]) -> dict[str, c.Config]:
    """Return the evaluated configurations by name. Rows with equal shared overrides and condition have one base."""
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
    """Return the name of a row's base; rows of one base share its evaluation."""
    return " ".join(("base", *row.shared, _condition(config, row)))


def _evaluated(changed: c.Config, condition: str, methods: Sequence[str]) -> c.Config:
    """Return the configuration with these evaluation methods and condition; with a routed method also with the study's
    operating points and the weak and strong ends, which APGR needs."""
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
    """Return the configuration under these overrides."""
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
    """Return the outcomes of an evaluation's episodes."""
    from r2v.evaluation.measures.outcomes import measure
    from r2v.evaluation.setup import read_setup, stored_episodes

    setup = read_setup(folder)
    return measure(stored_episodes(folder, setup), setup)


STAGE = Stage(version=5, settings=AblationsSettings, run=run, chains=chains_of, play=play)


def why_left_out(row: Ablation, base: Config, changed: Config) -> str | None:
    """Return the reason why a row's difference between `base` and `changed` is zero by construction, or None.

    Fewer jobs affect the compared methods' episodes than are made again: the verifier is an input of every job that
    could use it, and most do not by default. A row without an affecting job measures nothing. Raise UsageError if the
    ablated side needs a capability that the teacher lacks. Missing packages are reported by the stage itself.
    """
    if not changed.data.runs:
        job("verifier").load().sections(changed).require_anew()
    if not row.overrides or row.base_method != row.ablated_method:
        return None  # the control, or two methods
    if deciding_changes(base, changed, row.ablated_method):
        return None
    return f"nothing that decides what {row.ablated_method} does is changed by {' '.join(row.overrides)}"


def deciding_changes(base: Config, changed: Config, method: str) -> list[str]:
    """Return the jobs with other settings in `changed` than in `base` that affect the episodes of `method` there."""
    decide = deciding_jobs(changed, method)
    return [row.name for row in JOBS if row.name in decide and _differ(_sections(base, row), _sections(changed, row))]


def deciding_jobs(config: Config, method: str) -> set[str]:
    """Return the jobs whose artifacts affect a method's episodes, directly or through others."""
    deciding = _read_by(config, method)
    for row in reversed(JOBS):
        if row.name in deciding:
            deciding |= _deciding_inputs(config, as_configured(config, row))
    return deciding


def _read_by(config: Config, method: str) -> set[str]:
    """Return the jobs whose artifacts a method reads as it plays."""
    from r2v.router.baselines import instruments

    if METHODS[method].pretrained_only:
        return set()
    jobs = {"bc" if method == CLONE else "preference"}
    if method in ROUTERS:  # an untrained one is given the cost of r2v
        jobs |= {"router"}
    asks = instruments(method, config.router.features).verifier if method in ROUTERS else method == "best_of_k"
    return jobs | {"verifier"} if asks else jobs


def _deciding_inputs(config: Config, row: Job) -> set[str]:
    """Return the inputs that affect a job's content: the verifier only if the job uses its scores."""
    chosen = config.preference
    if row.name == "preference" and not chosen.enabled:
        return {"bc"}
    by_scores = chosen.pair_mode != "outcome"
    asks = by_scores if row.name == "candidates" else "verifier" in config.router.features
    return set(row.inputs) if asks else set(row.inputs) - {"verifier"}


def _sections(config: Config, row: Job) -> Any:
    """Return a job's own settings, with the verifier's `auto` label source resolved."""
    sections = row.load().sections(config)
    return _labels_named(config, sections) if row.name == "verifier" else sections


def _differ(sections: Any, others: Any) -> bool:
    """True if two settings of a job have different content; equality is tried first, since identities are slow."""
    return bool(sections != others) and bool(identity(sections) != identity(others))


def _labels_named(config: Config, sections: Any) -> Any:
    from r2v.stages.train_verifier import label_source

    if sections.verifier.label_sources != ["auto"] or sections.verifier.mode == "llm_judge":
        return sections
    source = "outcome"
    if sections.teacher.provider == "scripted":
        source = label_source(sections, deterministic=_deterministic(config))
    return dataclasses.replace(sections, verifier=dataclasses.replace(sections.verifier, label_sources=[source]))


def _deterministic(config: Config) -> bool:
    """True if the benchmark's environments fork exactly: as declared, or as recorded if it is not imported here. An
    unrecorded benchmark has no artifact yet that the answer could concern."""
    from r2v.envs.base import load_benchmark
    from r2v.pipeline.plan.recorded import recorded

    if may_import() or not is_dotted(config.env.benchmark):
        return load_benchmark(config.env.benchmark, config.env.options).capabilities.deterministic
    counts = recorded(config)
    return counts is None or counts.deterministic
