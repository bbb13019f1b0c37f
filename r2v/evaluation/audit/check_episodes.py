"""The audit of all episodes of an evaluation, with the branches and the gains taken along them.

All episodes of a task and seed are taken together: each is replayed with its decisions and its bill, and they must
agree on the states that they share. The same state has one score and one greedy action, so that an episode filed under
another method contradicts the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from r2v.config.methods import ORACLE, OURS
from r2v.data.episode import Episode, parse_episode, with_hashed_observations
from r2v.data.schema import from_dict, parse_json
from r2v.evaluation.audit.check_branches import BranchesAudit, Played, score_problems
from r2v.evaluation.audit.check_episode import EpisodeAudit, KnownStates
from r2v.evaluation.audit.findings import Findings
from r2v.evaluation.audit.folder import records_of
from r2v.evaluation.settings import EvaluateSettings
from r2v.evaluation.setup import GAINS, MAIN, OPERATING_POINT, CalibrationRecord, Setup, branches_file, episodes_path
from r2v.progress import Progress
from r2v.rollout.actors import StepView
from r2v.rollout.replay import Replay
from r2v.rollout.session import EpisodeSpec
from r2v.rollout.stage_rollouts.features import ROUND
from r2v.router.labels import FeatureRow

Kept = TypeVar("Kept", Episode, FeatureRow)
Cell = tuple[str, str, str]
"""(condition, method, operating point)."""


def _parse_row(line: str) -> FeatureRow:
    return from_dict(FeatureRow, parse_json(line))


@dataclass
class CellCounts:
    """Counts of a cell's episodes."""

    episodes: int = 0
    successes: int = 0
    faults: int = 0
    unconfirmed: int = 0
    """Faults of a world that need not repeat them, and did not."""


@dataclass
class EpisodesAudit:
    """Every episode of an evaluation, played again, with the gains taken along them."""

    results: Path
    settings: EvaluateSettings
    setup: Setup
    specs: Mapping[str, Sequence[EpisodeSpec]]
    """By condition."""
    one: EpisodeAudit
    calibration: Mapping[str, CalibrationRecord]
    """By "method@operating point"."""
    findings: Findings
    counts: dict[Cell, CellCounts] = field(default_factory=dict)

    def run(self) -> dict[Cell, CellCounts]:
        """Audit every condition. Return the counts of every cell."""
        with Progress("replay", self.setup.num_episodes) as bar:
            for condition in self.setup.conditions:
                self._condition(condition, self.specs[condition], bar)
        return self.counts

    def _condition(self, condition: str, specs: Sequence[EpisodeSpec], bar: Progress) -> None:
        cells = [cell for cell in self.setup.cells() if cell[0] == condition]
        stored = {cell: self._episodes(cell) for cell in cells}
        settings = self.settings
        tasks = {cell: set(self.setup.tasks_of(*cell)) for cell in cells}
        gained = set(self.setup.tasks_of(condition, GAINS)) if settings.scored else set()
        gains, oracle = self._branched(condition)
        of_gains, of_oracle = self._groups(condition, GAINS), self._groups(condition, ORACLE)
        rows = self._by_episode(self.results / "gains" / f"{condition}.jsonl", _parse_row)
        every, seeds = list[FeatureRow](), dict[str, int]()
        for start in sorted(specs, key=lambda spec: self.one.world.start(spec).identity):
            session, states, played = self.one.world.start(start), KnownStates(), dict[str, Played]()
            spec, identity = session.spec, session.identity
            seeds[identity] = spec.seed
            for cell in (cell for cell in cells if spec.task.task_id in tasks[cell]):
                bar.advance()
                episode = next(stored[cell], None)
                if episode is None or episode.episode_id != identity:
                    self._misplaced(cell, identity, episode)
                    stored[cell] = iter(())
                    continue
                views = self._episode(cell, spec, episode, states)
                if views is not None and cell[2] == MAIN:
                    played[cell[1]] = (episode, views)
            if ORACLE in played:
                group = of_oracle.pop(identity, [])
                self.findings.extend("branches", oracle.problems(spec, played[ORACLE], group, states))
                self.findings.extend("oracle", oracle.oracle_problems(played[ORACLE], group))
            if spec.task.task_id in gained:
                of_task, group = rows.pop(identity, []), of_gains.pop(identity, [])
                every += of_task
                self._gains(gains, spec, of_task, group, played.get(gains.method), states)
        for cell, rest in stored.items():
            if (episode := next(rest, None)) is not None:
                self._misplaced(cell, "nothing more", episode)
        for name, left in (("gains", rows), ("branches", of_gains), ("branches", of_oracle)):
            self.findings.extend(name, (f"{condition}: {identity} belongs to no episode" for identity in left))
        recorded = {s.method: s for s in self.setup.router_scores if s.condition == condition}
        if settings.scored:
            every.sort(key=lambda row: row.state_id)
            odd = (row.state_id for row in every if row.features.keys() != every[0].features.keys())
            self.findings.extend("gains", (f"{state}: its features are not those of other rows" for state in odd))
            problems = score_problems(condition, settings.routed, every, seeds, recorded)
            self.findings.extend("router_scores", problems)
        elif recorded:
            self.findings.add("router_scores", f"{condition}: no gain is executed here, and scores stand in setup.json")

    def _misplaced(self, cell: Cell, expected: str, episode: Episode | None) -> None:
        name = "/".join(cell)
        got = "the file ends" if episode is None else f"{episode.episode_id} stands there"
        text = f"{name}: {expected} belongs here, {got}; an evaluation plays every task and seed"
        self.findings.add("episodes", text)

    def _episodes(self, cell: Cell) -> Iterator[Episode]:
        path = episodes_path(self.results, *cell)
        return records_of(path, parse_episode, self.findings)

    def _placed(self, method: str, point: str) -> tuple[float | None, str]:
        """The threshold of a method at an operating point, None where it has none, and the method of its score."""
        record = self.calibration.get(f"{method}@{point}")
        return (None, method) if record is None else (record.tau, record.score or method)

    def _branched(self, condition: str) -> tuple[BranchesAudit, BranchesAudit]:
        """The audits of the branches of gains and of the oracle's."""
        settings, (placed, score) = self.settings, self._placed(OURS, MAIN)
        along = settings.gains_along(placed)
        gains = BranchesAudit(
            one=self.one,
            name=f"{condition}/{GAINS}",
            method=along,
            score=score if along == OURS else along,
            threshold=placed if along == OURS else None,
            number=settings.gains_round if along == OURS else 0,
        )
        return gains, replace(gains, name=f"{condition}/{ORACLE}", method=ORACLE, score=ORACLE, threshold=None)

    def _gains(
        self,
        gains: BranchesAudit,
        spec: EpisodeSpec,
        rows: list[FeatureRow],
        group: list[Episode],
        played: Played | None,
        states: KnownStates,
    ) -> None:
        if group and played is None and gains.method not in self.setup.methods:  # its episodes are kept here alone
            extra = {ROUND: gains.number}
            own = replace(spec, method=gains.method, extra=extra)
            views = self.one.check(
                gains.name, gains.score, gains.threshold, own, group[0], states, kept=with_hashed_observations
            ).views
            played = (group[0], views) if len(views) == len(group[0].steps) else None
        if played is None:
            return
        if not group:
            if played[0].env_fault is None and not (self.one.may_fail or self.one.may_be_refused):
                self.findings.add("gains", f"{gains.name}: {played[0].episode_id} has no branches")
            elif played[0].env_fault is None:
                why = "a fault of the world, or a question that the LLM's provider refused"
                self.findings.unproven[gains.name] = f"some episodes of {gains.method} have none: {why}"
            if rows:
                self.findings.add("gains", f"{gains.name}: {played[0].episode_id} has rows and no branches")
            return
        self.findings.extend("branches", gains.problems(spec, played, group, states))
        self.findings.extend("gains", gains.rows(spec, played, group, rows))

    def _groups(self, condition: str, name: str) -> dict[str, list[Episode]]:
        """Episodes with their branches, by id."""
        return self._by_episode(self.results / branches_file(condition, name), parse_episode)

    def _by_episode(self, path: Path, parse: Callable[[str], Kept]) -> dict[str, list[Kept]]:
        """The records of a file by the id of their episode, as many as its steps can have, two branches each."""
        most = 1 + 2 * self.settings.inference.max_steps
        by_episode: dict[str, list[Kept]] = {}
        for record in records_of(path, parse, self.findings) if path.exists() else ():
            of_episode = by_episode.setdefault(record.episode_id, [])
            of_episode.append(record)
            if len(of_episode) > most or len(by_episode) > self.setup.num_episodes:
                self.findings.add(path.name, f"{record.episode_id} has more records than an episode can have")
                break
        return by_episode

    def _episode(
        self, cell: Cell, spec: EpisodeSpec, episode: Episode, states: KnownStates
    ) -> Sequence[StepView] | None:
        """Audit one episode. Return the view at each step; None where its actions do not replay."""
        condition, method, point = cell
        extra = {} if point == MAIN else {OPERATING_POINT: point}
        filed = (episode.condition, episode.method, episode.extra.get(OPERATING_POINT, MAIN))
        name = "/".join(cell[:2]) if point == MAIN else f"{condition}/{method}@{point}"
        if filed != cell:
            claimed = "/".join(map(str, filed))
            self.findings.add("filed elsewhere", f"{name} {episode.episode_id}: says {claimed}")
            return None
        threshold, acting = self._placed(method, point)
        played = self.one.check(name, acting, threshold, replace(spec, method=method, extra=extra), episode, states)
        self._count(cell, episode, played)
        return played.views if len(played.views) == len(episode.steps) else None

    def _count(self, cell: Cell, episode: Episode, played: Replay) -> None:
        counts = self.counts.setdefault(cell, CellCounts())
        counts.episodes += 1
        if episode.env_fault is None:
            counts.successes += episode.success
        else:
            counts.faults += 1
            counts.unconfirmed += not played.fault_given
