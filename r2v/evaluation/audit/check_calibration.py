"""Thresholds and choices of a score, derived again from the recorded plays of calibration tasks.

All plays are read, and the product's own search (`r2v.evaluation.calibration`) runs over them: exactly the plays that
it asks for must be there, and calibration.json must hold its results byte for byte. A keyed share of the plays is
replayed in the world like every other episode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from r2v.config.methods import OURS
from r2v.data.episode import parse_episode, with_hashed_observations
from r2v.errors import R2VError
from r2v.evaluation.audit.check_episode import EpisodeAudit, KnownStates
from r2v.evaluation.audit.findings import Findings
from r2v.evaluation.audit.folder import records_of
from r2v.evaluation.calibration import (
    CALIBRATION,
    PLAYS,
    ROUTER,
    ROUTER_STATES,
    THRESHOLD,
    CalibrationPlay,
    RecordedPlays,
    RouterStates,
    calibrate,
    plays_path,
    threshold_of,
)
from r2v.evaluation.settings import EvaluateSettings
from r2v.evaluation.setup import CalibrationRecord, plain_calibration
from r2v.randomness import uniform
from r2v.rollout.session import EpisodeSpec
from r2v.router.thresholds import ALTERNATIVES
from r2v.storage.files import json_text

SHARE = 0.1
"""Of the calibration plays, those that are replayed unless all are asked for."""
_MOST_THRESHOLDS = 1000
"""Of a method: a search plays at most eight for each operating point."""
ROUTER_METHODS = (OURS, *ALTERNATIVES)
"""Methods that the router stage's search may play."""


def calibration_files(settings: EvaluateSettings, there: set[str]) -> Iterator[str]:
    """Yield the files, below the results, that calibration of these settings writes. Which alternatives the router
    stage played follows from its figures, so theirs are expected where they are `there`, and held to the search."""
    if not settings.routed:
        return
    folder, routers = Path(PLAYS), Path(PLAYS) / ROUTER
    yield CALIBRATION
    yield f"{routers}/{ROUTER_STATES}"
    yield plays_path(routers, OURS).as_posix()
    possible = [plays_path(routers, method) for method in ALTERNATIVES]
    possible += [plays_path(folder, method) for method in (*settings.routed, *ALTERNATIVES)]
    yield from (name for name in map(Path.as_posix, possible) if name in there)


class CalibrationAudit:
    """Calibration of one evaluation."""

    def __init__(
        self, results: Path, settings: EvaluateSettings, audit: EpisodeAudit, findings: Findings, share: float
    ) -> None:
        self.results, self.settings, self.audit, self.findings, self.share = results, settings, audit, findings, share
        self.num_plays = self.num_replayed = 0

    def run(self, salt: str) -> dict[str, CalibrationRecord]:
        """Read and replay the plays, derive the records and compare; `salt` keys which plays are replayed. Return the
        derived records; none where the plays give none."""
        if not self.settings.routed:
            return {}
        specs = self.settings.calibration_specs(self.audit.world.benchmark)
        folder = self.results / PLAYS
        methods = list(dict.fromkeys((*self.settings.routed, *ALTERNATIVES)))
        plays = self._read(folder, methods, specs, salt)
        routers = self._read(folder / ROUTER, ROUTER_METHODS, specs, salt)
        try:
            records = calibrate(self.settings, plays, routers, RouterStates.read(folder / ROUTER))
        except R2VError as error:
            self.findings.add(CALIBRATION, str(error))
            return {}
        for recorded in (plays, routers):
            for method, tau in sorted(recorded.found.keys() - recorded.asked):
                self.findings.add(PLAYS, f"{recorded.folder.name}: no search plays {method} at threshold {tau}")
        derived = json_text({name: plain_calibration(record) for name, record in records.items()})
        path = self.results / CALIBRATION
        if path.is_file() and path.read_bytes() != derived.encode():
            self.findings.add(CALIBRATION, "is not what the calibration episodes give")
        return records

    def _read(self, folder: Path, methods: Sequence[str], specs: Sequence[EpisodeSpec], salt: str) -> RecordedPlays:
        plays: dict[tuple[str, float], list[CalibrationPlay]] = {}
        for path, method in ((plays_path(folder, method), method) for method in methods):
            if path.exists():
                self._file(path, method, specs, salt, plays)
        return RecordedPlays(folder=folder, found=plays)

    def _file(
        self,
        path: Path,
        method: str,
        specs: Sequence[EpisodeSpec],
        salt: str,
        plays: dict[tuple[str, float], list[CalibrationPlay]],
    ) -> None:
        """Read one file of plays: every task and seed in its order, each under the same thresholds."""
        name = path.relative_to(self.results).as_posix()
        records = records_of(path, parse_episode, self.findings)
        position, taus, states = -1, list[float](), KnownStates()
        for episode in records:
            try:
                tau = threshold_of(episode)
            except R2VError as error:
                self.findings.add(name, str(error))
                return
            if position < 0 or (len(taus) and tau <= taus[-1]):
                position, taus, states = position + 1, [], KnownStates()
            taus.append(tau)
            if len(taus) > _MOST_THRESHOLDS:
                self.findings.add(name, f"more than {_MOST_THRESHOLDS} thresholds of one task; no search plays so many")
                return
            spec = replace(specs[min(position, len(specs) - 1)], method=method, extra={THRESHOLD: tau})
            session = self.audit.world.start(spec)
            if position >= len(specs) or episode.episode_id != session.identity or episode.method != method:
                self.findings.add(name, f"{episode.episode_id} at threshold {tau} stands where it does not belong")
                return
            plays.setdefault((method, tau), []).append(CalibrationPlay.of(episode))
            self.num_plays += 1
            if self.share >= 1 or uniform(salt, name, episode.episode_id, str(tau)) < self.share:
                self.num_replayed += 1
                label = f"{name} at {tau}"
                self.audit.check(label, method, tau, session.spec, episode, states, kept=with_hashed_observations)
        for (played, tau), some in plays.items():
            if played == method and len(some) != len(specs):
                self.findings.add(name, f"{len(some)} episodes at threshold {tau}, {len(specs)} are played")
