"""The audit of a results folder, `r2v verify-results DIR`: executed again, counted again, built again.

The folder may be a stranger's. No model is called and nothing that a file names is imported (`--trust` allows the
benchmark); every JSON is read by a strict schema, every file is held to artifact.json, setup.json to config.yaml. Then
all episodes of a task and seed are taken together: each is replayed with its decisions and its bill, and what they say
of the states that they share must agree: the same state has one score and one greedy action, so that an episode filed
under another method contradicts the rest. What rests on the folder's own word is listed with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from r2v.config.methods import OURS, ROUTERS
from r2v.data.episode import Episode, Step, parse_episode
from r2v.data.schema import from_dict, parse_json
from r2v.evaluation.audit.check_bills import Bills
from r2v.evaluation.audit.check_gains import GainsCheck
from r2v.evaluation.audit.findings import Findings
from r2v.evaluation.audit.folder import records_of
from r2v.evaluation.audit.recorded_actors import BEST_OF_K, LLM, SLM, RecordedActors
from r2v.evaluation.audit.replay_episode import FAULT, UNANSWERED, Replay, replay_episode
from r2v.evaluation.setup import GAINS, MAIN, OPERATING_POINT, RouterScores, Setup, episodes_path
from r2v.progress import Progress
from r2v.rollout.actors import Act, StepView
from r2v.rollout.session import EpisodeSpec, RolloutWorld
from r2v.router.labels import FeatureRow

Cell = tuple[str, str, str]
"""(condition, method, operating point)."""


Prefix = tuple[str, ...]
"""The actions before a step: with task, seed and condition they are the state."""
_OTHER_POLICIES = ("slm_bc_only", "slm_base", BEST_OF_K)
"""Methods whose small policy is another one, or does not act greedily."""


@dataclass
class CellCounts:
    """What became of a cell's episodes."""

    episodes: int = 0
    successes: int = 0
    faults: int = 0
    unconfirmed: int = 0
    """Faults of a world that need not repeat them, and did not."""


@dataclass
class KnownStates:
    """What the episodes of one task, seed and condition say of the states that they share."""

    actions: dict[Prefix, tuple[str, str]] = field(default_factory=dict)
    """The small policy's greedy action, and whose episode showed it."""
    scores: dict[tuple[str, Prefix, int], float] = field(default_factory=dict)
    """A score, by the method that it belongs to, state and LLM calls so far."""

    def contradictions(self, episode: Episode, score: str) -> Iterator[tuple[str, str]]:
        """(kind, text) for each step that says otherwise than an episode before, of which the method `score`'s score
        decided; then this one is remembered too."""
        prefix: Prefix = ()
        calls = 0
        for step in episode.steps:
            text, made = step.action.raw_text, step.decision
            own = text if step.action_source == SLM else None
            if step.proposal is not None and episode.method in ROUTERS:
                own = step.proposal.text
            if own is not None and episode.method not in _OTHER_POLICIES:
                shown, whose = self.actions.setdefault(prefix, (own, episode.method))
                if shown != own:
                    yield (
                        "small policy's action",
                        f"step {step.step_idx} of {episode.method}: it acts otherwise in the same state of {whose}",
                    )
            if episode.method in ROUTERS and made is not None and made.p_escalate is not None:
                key = (score, prefix, calls)
                if self.scores.setdefault(key, made.p_escalate) != made.p_escalate:
                    yield (
                        "router score",
                        f"step {step.step_idx}: p_escalate is {made.p_escalate}, in the same state {self.scores[key]}",
                    )
            calls += step.action_source == LLM
            prefix = (*prefix, text)


@dataclass(frozen=True, kw_only=True)
class EpisodeAudit:
    """The audit of one episode: replayed, billed, and held to what others say of the same states."""

    world: RolloutWorld
    actors: RecordedActors
    bills: Bills
    findings: Findings

    def check(
        self,
        name: str,
        method: str,
        threshold: float | None,
        spec: EpisodeSpec,
        episode: Episode,
        states: KnownStates,
        kept: Callable[[Episode], Episode] = lambda episode: episode,
    ) -> Replay:
        """Audit an episode that is filed as `name`, of which the method's score decided at this threshold."""

        def actor(view: StepView, step: Step) -> Act:
            return self.actors.act(view, method, step, threshold)

        played = replay_episode(self.world, spec, episode, actor, kept)
        for kind, text in played.problems:
            if not ((kind == FAULT and self.may_fail) or (kind == UNANSWERED and self.may_be_refused)):
                self._add(kind, name, episode, text)
        if len(played.views) == len(episode.steps):
            uncounted = self.actors.open_tokens(method, [step.action_source for step in episode.steps])
            for kind, text in self.bills.problems(episode, played.tokens, played.seconds, uncounted):
                self._add(kind, name, episode, text)
            for kind, text in states.contradictions(episode, method):
                self._contradicted(kind, name, episode, text)
        return played

    @property
    def may_fail(self) -> bool:
        """True if a fault of the world may come once and not again."""
        able = self.world.benchmark.capabilities
        return able.needs_network or not able.deterministic

    @property
    def may_be_refused(self) -> bool:
        """True if a provider is asked, which may refuse; a scripted LLM refuses nothing."""
        return self.actors.settings.teacher.provider != "scripted"

    def _contradicted(self, kind: str, name: str, episode: Episode, text: str) -> None:
        """Replies are promised to repeat to the byte for the bundled models; elsewhere a difference is only told."""
        if self.actors.encode is not None:
            self._add(kind, name, episode, text)
        else:
            self.findings.unproven.setdefault(
                f"{kind} differs between episodes", "a model on another machine need not repeat itself to the byte"
            )

    def _add(self, kind: str, name: str, episode: Episode, text: str) -> None:
        self.findings.add(kind, f"{name} {episode.episode_id}: {text}")


@dataclass
class EpisodesAudit:
    """Every episode of an evaluation, played again, with the gains taken along them."""

    results: Path
    setup: Setup
    one: EpisodeAudit
    thresholds: Mapping[tuple[str, str], float]
    """By (method, operating point)."""
    scores: Mapping[tuple[str, str], str]
    findings: Findings
    counts: dict[Cell, CellCounts] = field(default_factory=dict)

    @property
    def num_episodes(self) -> int:
        """Episodes that were audited."""
        return sum(counts.episodes for counts in self.counts.values())

    def run(self) -> None:
        """Audit every condition."""
        settings, benchmark = self.one.actors.settings, self.one.world.benchmark
        with Progress("replay", self.setup.num_episodes) as bar:
            for condition in self.setup.conditions:
                specs = settings.specs(benchmark, condition) if condition in settings.selections else ()
                self._condition(condition, specs, bar)

    def _condition(self, condition: str, specs: Sequence[EpisodeSpec], bar: Progress) -> None:
        cells = [cell for cell in self.setup.cells() if cell[0] == condition]
        stored = {cell: self._episodes(cell) for cell in cells}
        settings = self.one.actors.settings
        tasks = {cell: set(self.setup.tasks_of(*cell)) for cell in cells}
        gained = set(self.setup.tasks_of(condition, GAINS)) if settings.scored else set()
        may_fail = self.one.may_fail or self.one.may_be_refused
        placed = self.thresholds.get((OURS, MAIN))
        along = settings.gains_along(placed)
        routed = settings.routed if settings.scored else []
        threshold, mark = placed if along == OURS else None, self.one.world.benchmark.capabilities.untrusted
        gains = GainsCheck(condition, self.one.actors, routed, threshold, may_fail, mark)
        rows = self._rows(condition) if settings.scored else iter(())
        ahead = next(rows, None)
        for start in sorted(specs, key=lambda spec: self.one.world.start(spec).identity):
            session, states, played = self.one.world.start(start), KnownStates(), None
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
                self.findings.extend("gains", gains.problems(spec, of_task, played))
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
        name = "/".join(cell[:2]) if point == MAIN else f"{condition}/{method}@{point}"
        if filed != cell:
            said = "/".join(map(str, filed))
            self.findings.add("filed elsewhere", f"{name} {episode.episode_id}: says {said}")
            return None
        threshold, acting = self.thresholds.get((method, point)), self.scores.get((method, point), method)
        played = self.one.check(name, acting, threshold, replace(spec, extra=extra), episode, states)
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
