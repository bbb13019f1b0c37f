"""`r2v verify-results DIR`: the whole audit, from the files of the folder to its tables.

The folder may be a stranger's. No model is called and nothing that a file names is imported (`--trust` allows the
benchmark); every JSON is read by a strict schema, every file is held to artifact.json, setup.json to config.yaml.

    print(verify_results(Path("results/mrp")))      # InputError names each kind of lie with its first example

Values that cannot be proved are listed in `r2v.evaluation.audit.unproved`; docs/trust.md has the same table.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

from r2v.config.methods import ORACLE
from r2v.envs.base import Benchmark, Judged
from r2v.errors import InputError
from r2v.evaluation.audit.check_calibration import SHARE, CalibrationAudit, calibration_files
from r2v.evaluation.audit.check_episode import EpisodeAudit
from r2v.evaluation.audit.check_episodes import Cell, CellCounts, EpisodesAudit
from r2v.evaluation.audit.check_inputs import check_artifact, read_attempt
from r2v.evaluation.audit.check_setup import (
    blamed,
    check_setup,
    config_problems,
    planned_specs,
    require_executed,
    settings_of,
    world_of,
)
from r2v.evaluation.audit.findings import Findings
from r2v.evaluation.audit.folder import PROVIDER_FILES, check_files, require_small_files
from r2v.evaluation.audit.rebuild_tables import check_tables
from r2v.evaluation.audit.unproved import asks_provider, unproved_of
from r2v.evaluation.settings import EvaluateSettings
from r2v.evaluation.setup import (
    GAINS,
    SETUP,
    Setup,
    branches_file,
    choices_of,
    planned_files,
    read_setup,
)
from r2v.evaluation.tables.build import STRUCTURED, require_results
from r2v.rollout.recorded_actors import RecordedActors
from r2v.router.thresholds import ScoreChoice
from r2v.storage.integrity import CONFIGURATION, Artifact, content_files


@dataclass(frozen=True, kw_only=True)
class Verified:
    """The result of an audit without findings."""

    num_episodes: int
    num_plays: int
    """Calibration episodes, of which thresholds were derived again."""
    num_replayed: int
    """Of these, the episodes that were replayed."""
    counts: dict[Cell, CellCounts]
    num_tables: int
    """Files of structured_results/, all of them as the episodes give them."""
    choices: dict[str, ScoreChoice]
    """Of the score that r2v acts by, by operating point."""
    content_sha256: str
    """One hash over all content of the folder, for a paper to quote: SHA-256 of the sorted names and content hashes."""
    unproven: dict[str, str]

    def __str__(self) -> str:
        lines = [
            f"{self.num_episodes} episodes replayed with the recorded results; all {self.num_tables} files of "
            "structured_results are identical",
            *([self._calibration()] if self.num_plays else []),
            *(f"at {point} {choice.text()}" for point, choice in self.choices.items()),
            *(_fault_line(cell, counts) for cell, counts in self.counts.items() if counts.faults),
            f"content {self.content_sha256}",
            *(f"not proved: {what}: {reason}" for what, reason in self.unproven.items()),
        ]
        return "\n".join(lines)

    def _calibration(self) -> str:
        rest = "" if self.num_replayed == self.num_plays else ", a keyed share (--all replays all)"
        plays = f"{self.num_plays} calibration episodes, {self.num_replayed} of them replayed"
        return f"thresholds derived again from {plays}{rest}"


def _fault_line(cell: Cell, counts: CellCounts) -> str:
    """Success rates of a cell with faults: without them, as in the tables, and with them as failures."""
    measured = counts.episodes - counts.faults
    rate = f"{counts.successes / measured:.3f}" if measured else "none"
    return (
        f"{'/'.join(cell)}: {counts.faults} episodes ended by a fault of the world, {counts.unconfirmed} of them not "
        f"met again; success {rate} without them, {counts.successes / counts.episodes:.3f} with them as failures"
    )


def verify_results(results: Path, *, trust: bool = False, whole: bool = False) -> Verified:
    """Audit a folder. `trust` allows a benchmark that is not R2V's own to be imported; `whole` replays every
    calibration episode, not a tenth of them. Raises InputError in one line that names every kind of finding with its
    first example."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # unknown fields are a finding here, not a warning
        return _verified(results, trust, whole)


def _verified(results: Path, trust: bool, whole: bool) -> Verified:
    require_executed(results)
    require_results(results)
    there = require_small_files(results)
    configured, stored = settings_of(results), read_setup(results)
    findings = Findings()
    attempt = read_attempt(results, findings)
    settings = configured.without_verifier if attempt.left_out_verifier else configured
    world = world_of(settings, trust=trust)
    with blamed(CONFIGURATION):  # from here on no judge is asked
        judge = world.benchmark.judge_by_record() if isinstance(world.benchmark, Judged) else None
    if judge is not None:
        why = f"{judge} is not asked again; its replies are those of this project's journals"
        findings.unproven["answers that a model judged"] = why
    findings.extend(CONFIGURATION, config_problems(results / CONFIGURATION))
    if settings.router.imputed:
        findings.add(CONFIGURATION, "router.label is imputed: of such a router nothing is executed or evaluated")
    specs = planned_specs(settings, world.benchmark)
    content = content_files(results)
    digest = Artifact(stage="", fingerprint="", folder=results, files=content).data_sha256
    actors = actors_of(settings, world.benchmark)
    episode_audit = EpisodeAudit(world=world, actors=actors, findings=findings)
    placed = CalibrationAudit(results, settings, episode_audit, findings, 1.0 if whole else SHARE)
    calibration = placed.run(digest)
    setup = check_setup(stored, settings, world.benchmark, specs, choices_of(calibration), findings)
    check_files(results, there, _expected_files(setup, settings, results, there), content, findings)
    audit = EpisodesAudit(results, settings, setup, specs, episode_audit, calibration, findings)
    counts = audit.run()
    num_episodes = sum(cell.episodes for cell in counts.values())
    summary = {
        "n_episodes": num_episodes,
        "n_env_faults": sum(cell.faults for cell in counts.values()),
        "thresholds": {name: record.tau for name, record in calibration.items()},
    }
    check_artifact(results, configured, attempt, summary, findings)
    num_tables = check_tables(results, setup, findings)
    if findings:
        raise InputError(f"{results}: {findings}")
    return Verified(
        num_episodes=num_episodes,
        num_plays=placed.num_plays,
        num_replayed=placed.num_replayed,
        counts=counts,
        num_tables=num_tables,
        choices=setup.choices,
        content_sha256=digest,
        unproven=unproved_of(settings, actors) | findings.unproven,
    )


def actors_of(settings: EvaluateSettings, benchmark: Benchmark) -> RecordedActors:
    """The actors of an evaluation over the replies and scores that its episodes record."""
    return RecordedActors.of(
        benchmark,
        policy=settings.policy,
        teacher=settings.teacher,
        inference=settings.inference,
        cost=settings.cost,
        features=settings.router.features,
    )


def _expected_files(setup: Setup, settings: EvaluateSettings, results: Path, there: set[str]) -> set[str]:
    """The content that the setup implies; which tables there are is known once they are built again."""
    planned = {path.relative_to(results).as_posix() for path, *_ in planned_files(results, setup)}
    branched = {GAINS: settings.scored, ORACLE: ORACLE in setup.methods}
    branches = {branches_file(condition, name) for condition in setup.conditions for name in branched if branched[name]}
    gains = {f"gains/{condition}.jsonl" for condition in setup.conditions if settings.scored} | branches
    return {
        SETUP,
        *planned,
        *calibration_files(settings, there),
        *gains,
        *(name for name in there if name.startswith(f"{STRUCTURED}/")),
        *(name for name in there if asks_provider(settings) and PROVIDER_FILES.fullmatch(name)),
    }
