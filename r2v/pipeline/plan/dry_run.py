"""Dry run: each job's counts of work, their cost, and their time under the resources of the job.

    jobs = planned_jobs(config, facts, {"evaluate": allotted}, root)
    print("\\n".join(table(jobs, config, facts)))

Nothing is played. Episodes have the length of the benchmark's pace (`r2v.envs.pace`); the assumptions are printed below
the tables. `r2v plan` prints the table of times alone, the same for the same resources.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from r2v.config import Config
from r2v.console import duration, text_table
from r2v.errors import R2VError
from r2v.extensions import is_dotted
from r2v.memory.models import counted
from r2v.memory.seconds import ASSUMED, BANDWIDTH, UTILISATION
from r2v.pipeline.graph import selection, untrained_line
from r2v.pipeline.jobs import job
from r2v.pipeline.plan.benchmark_facts import UNCOUNTED_FIGURE, BenchmarkFacts, facts_here, uncounted_line
from r2v.pipeline.plan.collection_plan import collection_line
from r2v.pipeline.plan.jobs_to_do import chain_jobs
from r2v.pipeline.plan.likely import Likely, likely_dollars
from r2v.pipeline.plan.measured import MeasuredTime, measured_time
from r2v.pipeline.plan.plan_inputs import Part
from r2v.pipeline.plan.price import basis, dollars, questions
from r2v.pipeline.plan.stage_parts import parts_of
from r2v.pipeline.plan.wall import BUNDLED_SECONDS, Allotted, Seconds, time_of, unit_seconds, workers_of
from r2v.pipeline.plan.workload import Workload
from r2v.pipeline.rows import Job
from r2v.storage.durations import CPU, Duration
from r2v.storage.weights import needs_gpu

_CHANGING = (
    "{} of {} tasks change a world that others share: played alone on a site set, never branched, so that candidates, "
    "router features, oracle and gains leave them out"
)


@dataclass(frozen=True, kw_only=True)
class TimedPart:
    """A part of a job with its time and price."""

    part: Part
    seconds: Seconds
    unit_seconds: float
    usd: float | None


@dataclass(frozen=True, kw_only=True)
class PlannedWork:
    """A job with its parts under its resources."""

    name: str
    parts: tuple[TimedPart, ...]
    allotted: Allotted
    workers: int = 0
    """Environments stepped in parallel; 0 if none is."""
    likely: Likely | None = None
    """Likely bill; None if nothing is billed or it is unknown."""
    measured: tuple[MeasuredTime, ...] = ()
    """Earlier runs that scale the parts' seconds, one for each stage that has one; other parts are estimates."""

    @property
    def work(self) -> Workload:
        """All parts together."""
        return sum((timed.part.total for timed in self.parts), Workload())

    @property
    def seconds(self) -> Seconds:
        """All parts, one after another."""
        return sum((timed.seconds for timed in self.parts), Seconds())

    @property
    def wall(self) -> float:
        """Seconds from start to end; nan if the work is not counted or the model's size unknown."""
        return self.seconds.wall

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of the job and, while it plays, of its helpers."""
        training = sum(timed.seconds.wall for timed in self.parts if timed.part.total.trained)
        return self.allotted.gpus * (training + (1 + self.allotted.helpers) * (self.wall - training)) / 3600

    @property
    def usd(self) -> float | None:
        """Most US dollars: the list price of every request, or twice the likely bill if that is more; None if a price
        is unknown, nan if the work is not counted."""
        listed = _total_usd(self.parts)
        measured = self.likely is not None and self.likely.measured
        return max(listed, 2 * self.likely.usd) if listed is not None and self.likely and measured else listed

    @property
    def too_long(self) -> bool:
        """True if it takes longer than its time limit and needs more than one start."""
        return self.allotted.seconds is not None and self.wall > self.allotted.seconds

    @property
    def never_kept(self) -> list[TimedPart]:
        """Parts whose single unit takes longer than the time limit, so that they never end."""
        limit = math.inf if self.allotted.seconds is None else self.allotted.seconds
        return [timed for timed in self.parts if timed.unit_seconds > limit and timed.part.total.counted]


def _total_usd(items: Sequence[TimedPart] | Sequence[PlannedWork]) -> float | None:
    prices = [item.usd for item in items]
    return None if None in prices else sum(price for price in prices if price is not None)


def planned_jobs(
    config: Config, facts: BenchmarkFacts, allotted: Mapping[str, Allotted], root: Path | None = None
) -> list[PlannedWork]:
    """Return the work of each of these jobs under its resources, timed as `planned_work` does."""
    return [planned_work(name, config, facts, given, root) for name, given in allotted.items()]


def planned_work(
    name: str, config: Config, facts: BenchmarkFacts, allotted: Allotted, root: Path | None = None
) -> PlannedWork:
    """Return the work of one job under a configuration. The time of each of its stages is scaled from an earlier run
    below `root` (None: estimated) of this benchmark and model, if there is one."""
    planned = _estimated(name, config, facts, allotted, root)
    if root is None:
        return planned

    def count(other: Config) -> float:
        return sum(questions(_estimated(name, other, facts, allotted).work, other).values())

    requests = questions(planned.work, config)
    return replace(planned, likely=likely_dollars(job(name), config, requests, planned.usd, count, root))


def _estimated(
    name: str, config: Config, facts: BenchmarkFacts, allotted: Allotted, root: Path | None = None
) -> PlannedWork:
    """Return the job without its likely dollars, its times scaled from earlier runs below `root`."""
    parts, measured = list[TimedPart](), dict[str, MeasuredTime | None]()
    for stage, under in chain_jobs(name, config):
        timed = [_timed(part, under, facts, allotted) for part in parts_of(stage, under, facts)]
        if root is not None and stage not in measured:
            measured[stage] = _measured(stage, under, facts, allotted, timed, root, published=stage == name)
        if run := measured.get(stage):
            timed = [
                replace(part, seconds=part.seconds.times(run.factor), unit_seconds=part.unit_seconds * run.factor)
                for part in timed
            ]
        parts += timed if stage == name else [replace(part, part=_of_stage(stage, part.part)) for part in timed]
    plays = any(part.part.total.steps > 0 for part in parts)
    workers = workers_of(config, facts.pace, allotted) if plays else 0
    runs = tuple(run for run in measured.values() if run)
    return PlannedWork(name=name, parts=_merged(parts), allotted=allotted, workers=workers, measured=runs)


def _measured(
    name: str,
    config: Config,
    facts: BenchmarkFacts,
    allotted: Allotted,
    parts: Sequence[TimedPart],
    root: Path,
    *,
    published: bool,
) -> MeasuredTime | None:
    """Return the earlier run that scales a stage's time, on the same type of GPU if one has work; None without one."""
    seconds = sum((timed.seconds for timed in parts), Seconds())
    if math.isnan(seconds.wall):
        return None

    def of_run(other: Config, run: Duration) -> float:
        return _estimated(name, other, facts, replace(allotted, cpus=run.cpus, helpers=0)).wall

    computes = bool(seconds.model) and needs_gpu(config.policy)
    gpu = None if not computes else allotted.card if allotted.gpus else CPU
    return measured_time(name, config, seconds.wall, of_run, gpu=gpu, root=root, published=published)


def _of_stage(stage: str, part: Part) -> Part:
    label = stage if stage == part.name else f"{stage} {part.name}"
    return replace(part, name=label, remedy="ablations.names")


def _timed(part: Part, config: Config, facts: BenchmarkFacts, allotted: Allotted) -> TimedPart:
    return TimedPart(
        part=part,
        seconds=time_of(
            part.total, config, facts.pace, allotted, shared=part.shared, blocks=part.blocks, alone=part.alone
        ),
        unit_seconds=unit_seconds(part.unit, config, facts.pace, allotted).wall,
        usd=dollars(part.total, config),
    )


def _merged(parts: Sequence[TimedPart]) -> tuple[TimedPart, ...]:
    """Add up parts of one name, as several ablations have them."""
    merged: dict[str, TimedPart] = {}
    for timed in parts:
        name = timed.part.name
        merged[name] = _sum(merged[name], timed) if name in merged else timed
    return tuple(merged.values())


def _sum(a: TimedPart, b: TimedPart) -> TimedPart:
    longer = a if a.unit_seconds >= b.unit_seconds else b
    both = replace(
        a.part, total=a.part.total + b.part.total, unit=longer.part.unit, blocks=a.part.blocks + b.part.blocks
    )
    return TimedPart(part=both, seconds=a.seconds + b.seconds, unit_seconds=longer.unit_seconds, usd=_total_usd([a, b]))


COUNTS = (
    *("job", "episodes", "branches", "student", "LLM", "verifier", "LLM tokens", "trained tokens"),
    *("likely $", "at most $", ""),
)
"""Columns: episodes, branches, requests and tokens; their likely bill and their list price."""
TIMES = (
    *("job", "CPUs", "GPUs", "helpers", "workers", "model", "environment", "LLM", "wall", "limit", "GPU-hours", ""),
)
"""Columns: resources of the job and its time by model, environment and LLM; empty columns are left out."""


def table(jobs: Sequence[PlannedWork], config: Config, facts: BenchmarkFacts) -> list[str]:
    """Return the tables of counts and of times, a line for each job that does not fit, and the assumptions."""
    rows: list[tuple[str, ...]] = [COUNTS]
    for planned in jobs:
        likely = "" if planned.likely is None else _dollars(planned.likely.usd)
        bounds = (timed.part.at_most for timed in planned.parts)
        rows.append(_count_row(planned.name, planned.work, likely, planned.usd, bounds))
        for timed in _shown(planned):
            part = timed.part
            rows.append(_count_row(f"  {part.name}", part.total, "", timed.usd, [part.at_most]))
    likely_usd = [planned.likely.usd for planned in jobs if planned.likely is not None]
    work = sum((planned.work for planned in jobs), Workload())
    rows.append(_count_row("all", work, _dollars(sum(likely_usd)) if likely_usd else "", _total_usd(jobs), ()))
    untrained = untrained_line(config)
    if all(row[-3:-1] == ("", "") for row in rows[1:]):
        rows = [(*row[:-3], row[-1]) for row in rows]
    return [
        *text_table(rows, right=range(1, len(rows[0]) - 1)).splitlines(),
        "",
        *time_table(jobs),
        *([untrained] if untrained else []),
        *_unknown(jobs, config),
        *_basis(jobs, config, facts),
        *filter(None, (collection_line(job(planned.name), config, facts) for planned in jobs)),
        *time_basis(jobs),
    ]


def _unknown(jobs: Sequence[PlannedWork], config: Config) -> list[str]:
    """Return the reason that times of counted work are unknown: the small policy's size is."""
    if not any(math.isnan(planned.seconds.model) and planned.work.counted for planned in jobs):
        return []
    try:
        counted(config.policy.model_name)
    except R2VError as error:
        return [f"times are unknown: policy.model_name: {error}"]
    return []


def time_table(jobs: Sequence[PlannedWork]) -> list[str]:
    """Return the table of times of jobs and their parts, and a line for each job that does not fit."""
    rows: list[tuple[str, ...]] = [TIMES]
    for planned in jobs:
        given, state = planned.allotted, "DOES NOT FIT" if planned.too_long or planned.never_kept else ""
        gpus = f"{given.gpus} {given.card}".strip() if given.gpus else ""
        shares = (str(given.cpus), gpus, *(str(count or "") for count in (given.helpers, planned.workers)))
        limit = "" if given.seconds is None else duration(given.seconds)
        counted = planned.work.counted
        hours = _figure(planned.gpu_hours, counted) if given.gpus else ""
        rows.append((planned.name, *shares, *_time_cells(planned.seconds, counted), limit, hours, state))
        rows += [
            (f"  {part.part.name}", "", "", "", "", *_time_cells(part.seconds, part.part.total.counted), "", "", "")
            for part in _shown(planned)
        ]
    counted, gpu_hours = all(planned.work.counted for planned in jobs), sum(planned.gpu_hours for planned in jobs)
    total = _time_cells(sum((planned.seconds for planned in jobs), Seconds()), counted)
    rows.append(("all", "", "", "", "", *total, "", _figure(gpu_hours, counted) if gpu_hours else "", ""))
    used = [column for column in range(len(TIMES)) if any(row[column] for row in rows[1:])]
    right = [index for index, column in enumerate(used) if column not in (0, 2, len(TIMES) - 1)]
    lines = [*text_table([[row[column] for column in used] for row in rows], right=right).splitlines(), ""]
    return [*lines, *too_long, ""] if (too_long := warnings(jobs)) else lines


def _shown(planned: PlannedWork) -> tuple[TimedPart, ...]:
    """Return the parts that get a row of their own."""
    return planned.parts if len(planned.parts) > 1 else ()


def _count_row(name: str, work: Workload, likely: str, usd: float | None, bounds: Iterable[str]) -> tuple[str, ...]:
    counts = (work.episodes, work.branches, work.student, work.llm, work.verifier)
    tokens = (_tokens(value) for value in (work.llm_in + work.llm_out, work.trained))
    bound = "at most" if any(bounds) else ""
    return (name, *(_number(value) for value in counts), *tokens, likely, _dollars(usd), bound)


def _time_cells(seconds: Seconds, counted: bool) -> tuple[str, ...]:
    values = (seconds.model, seconds.environment, seconds.llm)
    return (
        *(_figure(value, counted, duration) if value else "" for value in values),
        _figure(seconds.wall, counted, duration),
    )


def _figure(value: float, counted: bool, written: Callable[[float], str] = "{:,.1f}".format) -> str:
    """Return a figure in text: `?` if the work is not counted, unknown if the model's size is."""
    return written(value) if not math.isnan(value) else "unknown" if counted else UNCOUNTED_FIGURE


def _dollars(usd: float | None) -> str:
    if usd is None:
        return "unknown"
    return f"{usd:,.2f}" if 0 < usd < 100 else _number(usd)


def _number(value: float) -> str:
    return _figure(value, False, "{:,.0f}".format) if value else ""


def _tokens(value: float) -> str:
    return f"{value / 1e6:,.1f} M" if value >= 1e6 else _number(value)


def as_json(planned: PlannedWork) -> dict[str, Any]:
    """Return a job as JSON values: resources, counts, seconds; null for uncounted and unknown ones."""

    def or_null(figures: Mapping[str, float]) -> dict[str, float | None]:
        return {name: None if math.isnan(value) else value for name, value in figures.items()}

    return {
        "job": planned.name,
        "resources": {**asdict(planned.allotted), "workers": planned.workers},
        "work": or_null(asdict(planned.work)),
        "seconds": or_null({**asdict(planned.seconds), "wall": planned.wall}),
        "measured": "; ".join(map(str, planned.measured)) or None,
        "usd": {"likely": None if planned.likely is None else asdict(planned.likely), "at_most": planned.usd},
    }


def describe_collection(config: Config) -> str:
    """Return the text of `r2v collect --dry-run`, measured on a sample of requests; for a benchmark of one's own, which
    is not imported, by the plan's counts. Raise UsageError as `collect_estimate.estimate` does."""
    from r2v.stages import collect_estimate

    collect_estimate.require_paid(config)
    if not is_dotted(config.env.benchmark):
        return collect_estimate.describe(config)
    facts = facts_here(config)
    return "\n".join(table([planned_work("collect", config, facts, Allotted(), Path())], config, facts))


def planned_here(config: Config, names: Iterable[str], root: Path) -> list[PlannedWork]:
    """Return the plan of these jobs on this machine; [] where it cannot be made, which must not fail the caller."""
    try:
        return planned_jobs(config, facts_here(config, root), {name: Allotted() for name in names}, root)
    except (R2VError, OSError, ValueError, LookupError, TypeError):
        return []


def rest_price(config: Config, row: Job, root: Path, *, itself: bool = False) -> tuple[str, str, float, float] | None:
    """Return (first, last, likely USD, most USD) of the paid stages after one, or (`itself`) from it on; None where
    none is paid, or the plan cannot be made, which must not fail a stage."""
    if not config.asks_provider:
        return None
    names = [item.name for item in selection(config)[0]]
    rest = names[names.index(row.name) + (not itself) :] if row.name in names else ()
    paid = [planned for planned in planned_here(config, rest, root) if questions(planned.work, config)]
    at_most = _total_usd(paid)
    if not paid or at_most is None or math.isnan(at_most):
        return None
    likely = sum(planned.likely.usd for planned in paid if planned.likely is not None)
    return paid[0].name, paid[-1].name, likely, at_most


def warnings(jobs: Sequence[PlannedWork]) -> list[str]:
    """Return a line for each job, or unit of one, that exceeds its time limit, with remedies."""
    lines = []
    for planned in jobs:
        limit = planned.allotted.seconds or 0.0
        lines += [
            f"{planned.name}: one task of {part.part.name} takes about {duration(part.unit_seconds)}, and what a task "
            f"has come to is kept when it ends: under --time={duration(limit)} it never does; fewer: {part.part.remedy}"
            for part in planned.never_kept
        ]
        if planned.too_long and not planned.never_kept:
            starts = math.ceil(planned.wall / limit)
            lines.append(
                f"{planned.name}: about {duration(planned.wall)} under --time={duration(limit)}, so it takes {starts} "
                f"starts (finished tasks are kept, the job is put back into the queue); {_shorter(planned)}"
            )
    return lines


def _shorter(planned: PlannedWork) -> str:
    """Return the remedies of the part that takes longest."""
    longest = max(planned.parts, key=lambda part: part.seconds.wall)
    slow = longest.seconds
    by = {
        slow.environment: "more of rollout.workers",
        slow.model: f"{'more or faster GPUs' if longest.part.total.trained else 'a faster GPU'} (--gres)",
        slow.llm: "more of teacher.max_concurrent",
    }
    other = "more of rollout.sites" if slow.alone else by[max(by)]
    return f"most of it {longest.part.name}: less of {longest.part.remedy}, or {other}"


def _above(jobs: Sequence[PlannedWork], config: Config, facts: BenchmarkFacts) -> list[str]:
    """Return a line for each count of tasks that exceeds its split, as the stage logs it."""
    counts = dict.fromkeys(count for planned in jobs if planned.parts for count in job(planned.name).task_counts)
    limits = [(key, attrgetter(key)(config), split) for key, split in counts]
    return [
        f"{key}={count}: there are {facts.tasks[split]} tasks in the {split} split; all of them are played"
        for key, count, split in limits
        if count is not None and count > facts.tasks[split]
    ]


def _basis(jobs: Sequence[PlannedWork], config: Config, facts: BenchmarkFacts) -> list[str]:
    split = ", ".join(f"{count} {name}" for name, count in facts.tasks.items() if count)
    estimated = "" if facts.listed else " (estimated: the benchmark itself is not asked here; no world can be copied)"
    bounds: dict[str, dict[str, None]] = {}
    for part in (part for planned in jobs for part in planned.parts if part.part.at_most):
        bounds.setdefault(part.part.at_most, {})[part.part.name] = None
    if facts.to_count:
        return [uncounted_line(config, facts), basis(config)]
    return [
        f"tasks: {split}{estimated}",
        *_above(jobs, config, facts),
        *([_CHANGING.format(facts.changing, sum(facts.tasks.values()))] if facts.changing else []),
        *facts.pace.lines(),
        *(f"at most ({', '.join(names)}): {why}" for why, names in bounds.items()),
        *(f"likely dollars of {planned.name}: {planned.likely.how}" for planned in jobs if planned.likely),
        "questions count each time, although equal ones are answered once, and tokens are about what prompts hold; "
        "training counts each row as policy.max_seq_len tokens",
        basis(config),
    ]


def time_basis(jobs: Sequence[PlannedWork]) -> list[str]:
    """Return the assumptions of the times, and the runs of the measured ones."""
    others = " of the others" if any(planned.measured for planned in jobs) else ""
    return [
        *(f"time of {planned.name}: {run}" for planned in jobs for run in planned.measured),
        f"times{others}: estimated; models, environments (so many workers at a time) and the LLM by direct calls, one "
        "after another, though they overlap",
        f"models: {UTILISATION:.0%} of the operations in the card's datasheet (that of {ASSUMED} where its type is not "
        f"known), {BANDWIDTH:.0%} of its bandwidth, training with gradient checkpointing; a bundled model: "
        f"{BUNDLED_SECONDS} s of a CPU for a question or a row",
    ]
