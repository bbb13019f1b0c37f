"""The evaluation setup: the planned measurements, stored with the episodes, so that both together give every table.

`results/<b>_<c>/setup.json`, `results/<b>_<c>/episodes/<condition>/<method>.jsonl.zst`, and for frontier points
`episodes/<condition>/frontier/<method>@<point>.jsonl.zst`; a plain `.jsonl` in place of either is read as well. The
setup names every cell of the grid (method x task x seed), so an episode that was never played is missed, not averaged
away.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from r2v.config.methods import ORACLE
from r2v.data.episode import Episode
from r2v.data.schema import from_dict, parse_json
from r2v.data.store import TrajectoryStore
from r2v.errors import InputError
from r2v.router.labels import FeatureRow
from r2v.router.thresholds import OperatingPoint, ScoreChoice, Spending
from r2v.serve.bundle.domain import Domain
from r2v.storage.files import write_json

SETUP = "setup.json"

OPERATING_POINT = "operating_point"
"""Key of `Episode.extra` naming a frontier point, e.g. "b0.10"; absent in the main table."""
FRONTIER, GAINS = "frontier", "gains"
"""Keys of `Setup.limits` that are no method's name."""
BRANCHED = (ORACLE, GAINS)
"""Cells whose episodes are branched."""
MAIN = "main"
"""The operating point of the main table."""


@dataclass(frozen=True, kw_only=True)
class RouterScores:
    """A router's scores `p` of held-out steps and whether one LLM step gained at each, `y` in [0, 1], as executed along
    episodes of r2v or of slm_only, which played on (`EvaluateSettings.gains_along`)."""

    method: str
    condition: str
    p: tuple[float, ...]
    y: tuple[float, ...]

    @classmethod
    def of(cls, method: str, condition: str, rows: Sequence[FeatureRow], scores: Sequence[float]) -> RouterScores:
        """The method's scores of executed rows."""
        return cls(
            method=method,
            condition=condition,
            y=tuple(float((row.gain or 0) > 0) for row in rows),
            p=tuple(round(score, 6) for score in scores),
        )

    def __post_init__(self) -> None:
        if not len(self.p) == len(self.y) > 0:
            raise InputError(
                f"router scores of {self.method} on {self.condition}: {len(self.p)} scores and "
                f"{len(self.y)} labels; as many of each are needed, and at least one"
            )


@dataclass(frozen=True, kw_only=True)
class CalibrationRecord:
    """One threshold and the figures realised with it on calibration tasks."""

    tau: float
    target: float
    llm_call_rate: float
    success: float
    cost: float
    by: Spending = "llm_call_rate"
    """The unit of the target: the share of LLM steps, or USD as billed per episode."""
    choice: ScoreChoice | None = None
    """Of r2v, where a score was chosen; the target is then of its own score."""

    @property
    def score(self) -> str | None:
        """The method whose score decides, where one was chosen."""
        return None if self.choice is None else self.choice.score

    @property
    def outcome(self) -> OperatingPoint:
        """Realised share of LLM steps, success and cost."""
        return OperatingPoint(llm_call_rate=self.llm_call_rate, success=self.success, cost=self.cost)

    @property
    def spent(self) -> float:
        """Realised amount of the target: share of LLM steps, or USD per episode."""
        return self.llm_call_rate if self.by == "llm_call_rate" else self.cost


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The plan of an evaluation. Order of methods and conditions is the order of the tables."""

    benchmark: str
    benchmark_version: str = ""
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    tasks: dict[str, list[str]]
    """Evaluation tasks of each condition."""
    frontier: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """condition -> method -> operating points besides the main one."""
    limits: dict[str, int] = field(default_factory=dict)
    """Tasks of each condition, the first of them, that some cells are limited to: `ORACLE`, "frontier" (every operating
    point) and "gains"."""
    never_branched: list[str] = field(default_factory=list)
    """Tasks that change a world which others share: no cell of `BRANCHED` has them."""
    cost_ratio: float = 30.0
    """Normalised cost of an LLM step; a policy step is 1."""
    resamples: int = 10_000
    level: float = 0.95
    cvar_alpha: float = 0.2
    router_scores: tuple[RouterScores, ...] = ()
    choices: dict[str, ScoreChoice] = field(default_factory=dict)
    """Operating point -> the score that r2v acts by, with the figures of its choice; empty where none was chosen."""
    world: dict[str, Any] = field(default_factory=dict)
    """Sections env, perturbations and inference, from which a replay makes the world again."""
    domain: Domain | None = None
    """Tools and marks of the benchmark, for serving the pair; None in results of an earlier R2V."""
    models: dict[str, str] = field(default_factory=dict)
    prices: dict[str, Any] = field(default_factory=dict)
    config_sha256: str = ""
    git_commit: str | None = None

    @property
    def conditions(self) -> tuple[str, ...]:
        """Conditions in table order."""
        return tuple(self.tasks)

    def tasks_of(self, condition: str, method: str, point: str = MAIN) -> list[str]:
        """The tasks of one cell: the condition's that may be in it, as far as the cell is not limited."""
        left_out = self.never_branched if method in BRANCHED else []
        tasks = [task for task in self.tasks[condition] if task not in left_out] if left_out else self.tasks[condition]
        return tasks[: self.limits.get(method if point == MAIN else FRONTIER)]

    def frontier_points(self, condition: str, method: str) -> list[str]:
        """The operating points of a method's curve, the main one among them; none where it has no curve."""
        points = self.frontier.get(condition, {}).get(method)
        return [MAIN, *points] if points else []

    @property
    def num_episodes(self) -> int:
        """Of all cells."""
        return sum(len(self.tasks_of(*cell)) for cell in self.cells()) * len(self.seeds)

    def cells(self) -> Iterator[tuple[str, str, str]]:
        """Every (condition, method, operating point) that is played, in table order."""
        for condition in self.conditions:
            yield from ((condition, method, MAIN) for method in self.methods)
            for method, points in self.frontier.get(condition, {}).items():
                yield from ((condition, method, point) for point in points)


def write_setup(results: Path, setup: Setup) -> Path:
    """Store the setup in the results folder."""
    write_json(results / SETUP, to_plain(setup))
    return results / SETUP


def read_setup(results: Path) -> Setup:
    """The setup of a results folder. Raises InputError where it is missing or is not one."""
    path = results / SETUP
    try:
        return from_dict(Setup, parse_json(path.read_text()))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; it is written by r2v evaluate") from None
    except (ValueError, TypeError, AttributeError, OSError, InputError) as error:
        raise InputError(f"{path}: not the setup of an evaluation: {error}") from error


def to_plain(setup: Setup) -> dict[str, Any]:
    """The setup as JSON values."""
    plain = asdict(setup)
    optional = ("limits", "never_branched", "choices", "domain")
    return {name: value for name, value in plain.items() if name not in optional or value}


def choices_of(calibration: Mapping[str, CalibrationRecord]) -> dict[str, ScoreChoice]:
    """r2v's choices of a score, by operating point."""
    return {name.partition("@")[2]: record.choice for name, record in calibration.items() if record.choice is not None}


def plain_calibration(record: CalibrationRecord) -> dict[str, Any]:
    """A record of calibration.json as JSON values."""
    plain = asdict(record)
    return {name: value for name, value in plain.items() if name != "choice" or value}


def episodes_file(condition: str, method: str, point: str = MAIN) -> str:
    """The file, below the results, that a method's episodes under a condition are written to; `point` names an
    operating point of its frontier."""
    name = method if point == MAIN else f"frontier/{method}@{point}"
    return f"episodes/{condition}/{name}.jsonl.zst"


def branches_file(condition: str, name: str) -> str:
    """The file, below the results, of the branches that the oracle tried (`ORACLE`) or that gains were executed by
    (`GAINS`), the latter behind the episodes that they leave."""
    return f"branches/{condition}/{name}.jsonl.zst"


def episodes_path(results: Path, condition: str, method: str, point: str = MAIN) -> Path:
    """The path of these episodes, packed or plain, existing or planned."""
    packed = results / episodes_file(condition, method, point)
    plain = packed.with_suffix("")
    return plain if plain.exists() and not packed.exists() else packed


def planned_files(results: Path, setup: Setup) -> Iterator[tuple[Path, str, str, str]]:
    """(path, condition, method, point) of every episodes file that the setup plans, in table order."""
    for cell in setup.cells():
        yield episodes_path(results, *cell), *cell


def stored_episodes(results: Path, setup: Setup) -> Iterator[Episode]:
    """Every episode of an evaluation. Raises InputError for a missing file, a bad line, or an episode whose
    method, condition or point is not its file's."""
    for path, *cell in planned_files(results, setup):
        for episode in TrajectoryStore(path).iter_episodes():
            recorded = [episode.condition, episode.method, episode.extra.get(OPERATING_POINT, MAIN)]
            if recorded != cell:
                claimed, filed = "/".join(map(str, recorded)), "/".join(cell)
                raise InputError(f"{path}: episode {episode.episode_id} says {claimed}, its file says {filed}")
            yield episode
