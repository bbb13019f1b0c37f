"""The audit of a results folder, `r2v verify-results DIR`: executed again, counted again, built again.

The folder may be a stranger's. No model is called and nothing that a file names is imported (`--trust` allows the
benchmark); every JSON is read by a strict schema, every file is held to artifact.json, setup.json to config.yaml. Then
all episodes of a task and seed are taken together: each is replayed, its decisions and its bill are made again, and
what they say of the states that they share must agree. What rests on the folder's own word is listed with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from r2v.config.methods import OURS
from r2v.data.episode import Episode, parse_episode
from r2v.data.schema import from_dict, parse_json
from r2v.evaluation.audit.check_bills import Biller
from r2v.evaluation.audit.check_calibration import Scores, Thresholds
from r2v.evaluation.audit.check_decisions import KnownStates, decision_problems
from r2v.evaluation.audit.check_gains import GainsCheck
from r2v.evaluation.audit.findings import Findings
from r2v.evaluation.audit.json_lines import records_of
from r2v.evaluation.audit.replay_episode import FAULT, UNANSWERED, Replay, replay_episode
from r2v.evaluation.setup import GAINS, MAIN, OPERATING_POINT, RouterScores, Setup, episodes_path
from r2v.log import Progress
from r2v.rollout.actors import StepView
from r2v.rollout.session import EpisodeSpec, RolloutWorld
from r2v.router.labels import FeatureRow

Cell = tuple[str, str, str]
"""(condition, method, operating point)."""


@dataclass
class CellCounts:
    """What became of a cell's episodes."""

    episodes: int = 0
    successes: int = 0
    faults: int = 0
    unconfirmed: int = 0
    """Faults of a world that need not repeat them, and did not."""


@dataclass
class EpisodesAudit:
    """Every episode of an evaluation, played again, with the gains taken along them."""

    results: Path
    setup: Setup
    world: RolloutWorld
    biller: Biller
    thresholds: Thresholds
    scores: Scores
    findings: Findings
    counts: dict[Cell, CellCounts] = field(default_factory=dict)

    @property
    def num_episodes(self) -> int:
        """Episodes that were audited."""
        return sum(counts.episodes for counts in self.counts.values())

    def run(self) -> None:
        """Audit every condition."""
        settings, benchmark = self.biller.settings, self.world.benchmark
        with Progress("replay", self.setup.num_episodes) as bar:
            for condition in self.setup.conditions:
                specs = settings.specs(benchmark, condition) if condition in settings.selections else ()
                self._condition(condition, specs, bar)

    def _condition(self, condition: str, specs: Sequence[EpisodeSpec], bar: Progress) -> None:
        cells = [cell for cell in self.setup.cells() if cell[0] == condition]
        stored = {cell: self._episodes(cell) for cell in cells}
        settings = self.biller.settings
        tasks = {cell: set(self.setup.tasks_of(*cell)) for cell in cells}
        gained = set(self.setup.tasks_of(condition, GAINS)) if settings.scored else set()
        may_fail = self._may_fail() or self._may_be_refused()
        placed = self.thresholds.get((OURS, MAIN))
        along = settings.gains_along(placed)
        routed = settings.routed if settings.scored else []
        threshold, mark = placed if along == OURS else None, self.world.benchmark.capabilities.untrusted
        gains = GainsCheck(self.setup, condition, self.biller, routed, threshold, may_fail, mark)
        rows = self._rows(condition) if settings.scored else iter(())
        ahead = next(rows, None)
        for start in sorted(specs, key=lambda spec: self.world.start(spec).identity):
            session, states, played = self.world.start(start), KnownStates(), None
            spec, identity = session.spec, session.identity
            for cell in (cell for cell in cells if spec.task.task_id in tasks[cell]):
                bar.advance()
                episode = next(stored[cell], None)
                if episode is None or episode.episode_id != identity:
                    self._misplaced(cell, identity, episode)
                    stored[cell] = iter(())
                    continue
                views = self._episode(cell, spec, episode, states)
                if views is not None and cell == (condition, along, MAIN):
                    played = (episode, views)
            of_task = ahead[1] if ahead is not None and ahead[0] == identity else []
            if spec.task.task_id in gained:
                self.findings.extend("gains", gains.problems(spec, of_task, played, states))
            ahead = next(rows, None) if of_task else ahead
        for cell, rest in stored.items():
            if (episode := next(rest, None)) is not None:
                self._misplaced(cell, "nothing more", episode)
        if ahead is not None:
            self.findings.add("gains", f"{condition}: rows of {ahead[0]} are out of order or belong to no episode")
        if not settings.scored and any(s.condition == condition for s in self.setup.router_scores):
            self.findings.add("router_scores", f"{condition}: no gain is executed here, and scores stand in setup.json")
        recorded: dict[str, RouterScores] = {s.method: s for s in self.setup.router_scores if s.condition == condition}
        if gains.unmeasured:
            why = "a fault of the world, or a question that the LLM's provider refused"
            self.findings.unproven[f"{condition} gains"] = f"{gains.unmeasured} episodes of {along} have none: {why}"
        self.findings.extend("router_scores", gains.scores_problems(recorded))

    def _misplaced(self, cell: Cell, expected: str, episode: Episode | None) -> None:
        name = "/".join(cell)
        got = "the file ends" if episode is None else f"{episode.episode_id} stands there"
        self.findings.add(
            "episodes", f"{name}: {expected} belongs here, {got}; an evaluation plays every task and seed"
        )

    def _episodes(self, cell: Cell) -> Iterator[Episode]:
        path = episodes_path(self.results, *cell)
        return records_of(path, parse_episode, self.findings)

    def _rows(self, condition: str) -> Iterator[tuple[str, list[FeatureRow]]]:
        path = self.results / "gains" / f"{condition}.jsonl"
        rows = records_of(path, lambda line: from_dict(FeatureRow, parse_json(line)), self.findings)
        for identity, of_episode in groupby(rows, key=lambda row: row.episode_id):
            yield identity, list(of_episode)

    def _episode(
        self, cell: Cell, spec: EpisodeSpec, episode: Episode, states: KnownStates
    ) -> Sequence[StepView] | None:
        """Audit one episode; what an actor saw at each step, where its actions replay."""
        condition, method, point = cell
        extra = {} if point == MAIN else {OPERATING_POINT: point}
        filed = (episode.condition, episode.method, episode.extra.get(OPERATING_POINT, MAIN))
        if filed != cell:
            self._add("filed elsewhere", cell, episode, f"says {'/'.join(map(str, filed))}")
            return None
        played = replay_episode(self.world, replace(spec, extra=extra), episode)
        self._count(cell, episode, played)
        for kind, text in played.problems:
            if not ((kind == FAULT and self._may_fail()) or (kind == UNANSWERED and self._may_be_refused())):
                self._add(kind, cell, episode, text)
        threshold = self.thresholds.get((method, point))
        for text in decision_problems(episode, threshold, self.world.inference):
            self._add("decision", cell, episode, text)
        if len(played.views) != len(episode.steps):
            return None
        for kind, text in self.biller.problems(episode, played.views, threshold, played.seconds):
            self._add(kind, cell, episode, text)
        for kind, text in states.contradictions(episode, self.scores.get((method, point), method)):
            self._contradicted(kind, cell, episode, text)
        return played.views

    def _may_fail(self) -> bool:
        """Whether a fault of the world may come once and not again."""
        able = self.world.benchmark.capabilities
        return able.needs_network or not able.deterministic

    def _may_be_refused(self) -> bool:
        """True if a provider is asked, which may refuse; a scripted LLM refuses nothing."""
        return self.biller.settings.teacher.provider != "scripted"

    def _count(self, cell: Cell, episode: Episode, played: Replay) -> None:
        counts = self.counts.setdefault(cell, CellCounts())
        counts.episodes += 1
        if episode.env_fault is None:
            counts.successes += episode.success
        else:
            counts.faults += 1
            counts.unconfirmed += not played.fault_given

    def _contradicted(self, kind: str, cell: Cell, episode: Episode, text: str) -> None:
        """Replies are promised to repeat to the byte for the bundled models; elsewhere a difference is only told."""
        if self.biller.spelling is not None:
            self._add(kind, cell, episode, text)
        else:
            self.findings.unproven.setdefault(
                f"{kind} differs between episodes", "a model on another machine need not repeat itself to the byte"
            )

    def _add(self, kind: str, cell: Cell, episode: Episode, text: str) -> None:
        name = "/".join(cell[:2]) if cell[2] == MAIN else f"{cell[0]}/{cell[1]}@{cell[2]}"
        self.findings.add(kind, f"{name} {episode.episode_id}: {text}")
