"""The dry run: each job's counts of work, their cost, and their time under the resources of the job.

    jobs = planned_jobs(config, known, {"evaluate": allotted}, root)
    print("\\n".join(table(jobs, config, known)))

Nothing is played. Episodes are as long as the benchmark's pace says (`r2v.envs.pace`); assumptions are printed as such,
below the tables. `r2v plan` prints the table of times alone: it is the same for the same resources.
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
from r2v.pipeline.plan.case import Part
from r2v.pipeline.plan.collection_plan import collection_line
from r2v.pipeline.plan.jobs_to_do import makes_of
from r2v.pipeline.plan.known import UNCOUNTED_FIGURE, Known, known_here, uncounted_line
from r2v.pipeline.plan.likely import Likely, likely_dollars
from r2v.pipeline.plan.measured import MeasuredTime, measured_time
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
    """A job: its parts under its resources."""

    name: str
    parts: tuple[TimedPart, ...]
    allotted: Allotted
    workers: int = 0
    """Environments that are stepped at the same time; 0 where none is."""
    likely: Likely | None = None
    """What it is likely to be billed; None: nothing, or nobody can tell."""
    measured: tuple[MeasuredTime, ...] = ()
    """The earlier runs by whose time the parts' seconds are scaled, one for each stage that the job makes; parts of a
    stage without one are estimates."""

    @property
    def work(self) -> Workload:
        """All parts together."""
        return sum((one.part.total for one in self.parts), Workload())

    @property
    def seconds(self) -> Seconds:
        """All parts, one after another."""
        return sum((one.seconds for one in self.parts), Seconds())

    @property
    def wall(self) -> float:
        """Seconds from start to end; nan where the work is not counted or the model's size is not known."""
        return self.seconds.wall

    @property
    def gpu_hours(self) -> float:
        """Hours of the GPUs of the job and, while it plays, of its helpers."""
        training = sum(one.seconds.wall for one in self.parts if one.part.total.trained)
        return self.allotted.gpus * (training + (1 + self.allotted.helpers) * (self.wall - training)) / 3600

    @property
    def usd(self) -> float | None:
        """Dollars at most: the list price of every question, or twice what it is likely to be billed where that is
        more; None where they are not known, nan where the work is not counted."""
        listed = _total_usd(self.parts)
        measured = self.likely is not None and self.likely.measured
        return max(listed, 2 * self.likely.usd) if listed is not None and self.likely and measured else listed

    @property
    def too_long(self) -> bool:
        """True if it takes longer than its time limit, so that it needs more than one start."""
        return self.allotted.seconds is not None and self.wall > self.allotted.seconds

    @property
    def never_kept(self) -> list[TimedPart]:
        """Parts of which a single unit takes longer than the time limit: they never end."""
        limit = self.allotted.seconds
        return [one for one in self.parts if limit is not None and one.unit_seconds > limit and one.part.total.counted]


def _total_usd(items: Sequence[TimedPart] | Sequence[PlannedWork]) -> float | None:
    prices = [one.usd for one in items]
    return None if None in prices else sum(price for price in prices if price is not None)


def planned_jobs(
    config: Config, known: Known, allotted: Mapping[str, Allotted], root: Path | None = None
) -> list[PlannedWork]:
    """The work of each of these jobs under its resources, timed as `planned_work` does."""
    return [planned_work(name, config, known, given, root) for name, given in allotted.items()]


def planned_work(name: str, config: Config, known: Known, allotted: Allotted, root: Path | None = None) -> PlannedWork:
    """The work of one job under a configuration. The time of each stage that it makes goes by an earlier run of that
    stage below `root` (None: by none), where there is one of this benchmark and model."""
    planned = _estimated(name, config, known, allotted, root)
    if root is None:
        return planned

    def count(made: Config) -> float:
        return sum(questions(_estimated(name, made, known, allotted).work, made).values())

    asked = questions(planned.work, config)
    return replace(planned, likely=likely_dollars(job(name), config, asked, planned.usd, count, root))


def _estimated(name: str, config: Config, known: Known, allotted: Allotted, root: Path | None = None) -> PlannedWork:
    """The job without its likely dollars; its times go by earlier runs below `root`."""
    parts, measured = list[TimedPart](), dict[str, MeasuredTime | None]()
    for made, under in makes_of(name, config):
        found = [_timed(part, under, known, allotted) for part in parts_of(made, under, known)]
        if root is not None and made not in measured:
            measured[made] = _measured(made, under, known, allotted, found, root, published=made == name)
        if run := measured.get(made):
            found = [
                replace(one, seconds=one.seconds.times(run.factor), unit_seconds=one.unit_seconds * run.factor)
                for one in found
            ]
        parts += found if made == name else [replace(one, part=_of_stage(made, one.part)) for one in found]
    plays = any(one.part.total.steps > 0 for one in parts)
    workers = workers_of(config, known.pace, allotted) if plays else 0
    runs = tuple(run for run in measured.values() if run)
    return PlannedWork(name=name, parts=_merged(parts), allotted=allotted, workers=workers, measured=runs)


def _measured(
    name: str,
    config: Config,
    known: Known,
    allotted: Allotted,
    parts: Sequence[TimedPart],
    root: Path,
    *,
    published: bool,
) -> MeasuredTime | None:
    """The earlier run of a stage that its time goes by, on such a GPU where a GPU has work; None where none is."""
    seconds = sum((one.seconds for one in parts), Seconds())
    if math.isnan(seconds.wall):
        return None

    def of_run(made: Config, run: Duration) -> float:
        return _estimated(name, made, known, replace(allotted, cpus=run.cpus, helpers=0)).wall

    computes = bool(seconds.model) and needs_gpu(config.policy)
    gpu = None if not computes else allotted.card if allotted.gpus else CPU
    return measured_time(name, config, seconds.wall, of_run, gpu=gpu, root=root, published=published)


def _of_stage(made: str, part: Part) -> Part:
    label = made if made == part.name else f"{made} {part.name}"
    return replace(part, name=label, remedy="ablations.names")


def _timed(part: Part, config: Config, known: Known, allotted: Allotted) -> TimedPart:
    return TimedPart(
        part=part,
        seconds=time_of(
            part.total, config, known.pace, allotted, shared=part.shared, blocks=part.blocks, alone=part.alone
        ),
        unit_seconds=unit_seconds(part.unit, config, known.pace, allotted).wall,
        usd=dollars(part.total, config),
    )


def _merged(parts: Sequence[TimedPart]) -> tuple[TimedPart, ...]:
    """Parts of one name together, as several ablations have them."""
    found: dict[str, TimedPart] = {}
    for one in parts:
        name = one.part.name
        found[name] = _sum(found[name], one) if name in found else one
    return tuple(found.values())


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
"""Columns: episodes, branches, questions and tokens; what they are likely to be billed, and their list price."""
TIMES = (
    *("job", "CPUs", "GPUs", "helpers", "workers", "model", "environment", "LLM", "wall", "limit", "GPU-hours", ""),
)
"""Columns: resources of the job, and its time under them by the three that take it; one without a value is left out."""


def table(jobs: Sequence[PlannedWork], config: Config, known: Known) -> list[str]:
    """The tables of counts and of times, a line for each job that does not fit, and the assumptions."""
    rows: list[tuple[str, ...]] = [COUNTS]
    for one in jobs:
        likely = "" if one.likely is None else _dollars(one.likely.usd)
        rows.append(_count_row(one.name, one.work, likely, one.usd, [part.part.at_most for part in one.parts]))
        for timed in _shown(one):
            part = timed.part
            rows.append(_count_row(f"  {part.name}", part.total, "", timed.usd, [part.at_most]))
    told = [one.likely.usd for one in jobs if one.likely is not None]
    work = sum((one.work for one in jobs), Workload())
    rows.append(_count_row("all", work, _dollars(sum(told)) if told else "", _total_usd(jobs), ()))
    untrained = untrained_line(config)
    if all(row[-3:-1] == ("", "") for row in rows[1:]):
        rows = [(*row[:-3], row[-1]) for row in rows]
    return [
        *text_table(rows, right=range(1, len(rows[0]) - 1)).splitlines(),
        "",
        *time_table(jobs),
        *([untrained] if untrained else []),
        *_unknown(jobs, config),
        *_basis(jobs, config, known),
        *filter(None, (collection_line(job(one.name), config, known) for one in jobs)),
        *time_basis(jobs),
    ]


def _unknown(jobs: Sequence[PlannedWork], config: Config) -> list[str]:
    """Why times are unknown although the work is counted: the small policy's size is not known."""
    if not any(math.isnan(one.seconds.model) and one.work.counted for one in jobs):
        return []
    try:
        counted(config.policy.model_name)
    except R2VError as error:
        return [f"times are unknown: policy.model_name: {error}"]
    return []


def time_table(jobs: Sequence[PlannedWork]) -> list[str]:
    """The times of jobs and their parts under the resources of each, and a line for each that does not fit."""
    rows: list[tuple[str, ...]] = [TIMES]
    for one in jobs:
        given, state = one.allotted, "DOES NOT FIT" if one.too_long or one.never_kept else ""
        gpus = f"{given.gpus} {given.card}".strip() if given.gpus else ""
        shares = (str(given.cpus), gpus, *(str(count or "") for count in (given.helpers, one.workers)))
        limit = "" if given.seconds is None else duration(given.seconds)
        counted = one.work.counted
        hours = _figure(one.gpu_hours, counted) if given.gpus else ""
        rows.append((one.name, *shares, *_time_cells(one.seconds, counted), limit, hours, state))
        rows += [
            (f"  {part.part.name}", "", "", "", "", *_time_cells(part.seconds, part.part.total.counted), "", "", "")
            for part in _shown(one)
        ]
    counted, gpu_hours = all(one.work.counted for one in jobs), sum(one.gpu_hours for one in jobs)
    total = _time_cells(sum((one.seconds for one in jobs), Seconds()), counted)
    rows.append(("all", "", "", "", "", *total, "", _figure(gpu_hours, counted) if gpu_hours else "", ""))
    used = [column for column in range(len(TIMES)) if any(row[column] for row in rows[1:])]
    right = [place for place, column in enumerate(used) if column not in (0, 2, len(TIMES) - 1)]
    lines = [*text_table([[row[column] for column in used] for row in rows], right=right).splitlines(), ""]
    return [*lines, *too_long, ""] if (too_long := warnings(jobs)) else lines


def _shown(one: PlannedWork) -> tuple[TimedPart, ...]:
    """The parts that get a row of their own."""
    return one.parts if len(one.parts) > 1 else ()


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
    """A figure as it is written, `?` where the work is not counted, unknown where the model's size is not known."""
    return written(value) if not math.isnan(value) else "unknown" if counted else UNCOUNTED_FIGURE


def _dollars(usd: float | None) -> str:
    if usd is None:
        return "unknown"
    return f"{usd:,.2f}" if 0 < usd < 100 else _number(usd)


def _number(value: float) -> str:
    return _figure(value, False, "{:,.0f}".format) if value else ""


def _tokens(value: float) -> str:
    return f"{value / 1e6:,.1f} M" if value >= 1e6 else _number(value)


def as_json(one: PlannedWork) -> dict[str, Any]:
    """A job as JSON values: resources, counts, seconds; null for what is not counted or not known."""

    def known(figures: Mapping[str, float]) -> dict[str, float | None]:
        return {name: None if math.isnan(value) else value for name, value in figures.items()}

    return {
        "job": one.name,
        "resources": {**asdict(one.allotted), "workers": one.workers},
        "work": known(asdict(one.work)),
        "seconds": known({**asdict(one.seconds), "wall": one.wall}),
        "measured": "; ".join(map(str, one.measured)) or None,
        "usd": {"likely": None if one.likely is None else asdict(one.likely), "at_most": one.usd},
    }


def describe_collection(config: Config) -> str:
    """Text of `r2v collect --dry-run`: measured on a sample of requests; of a benchmark of one's own, which is not
    imported for that, as the plan counts it. Raises UsageError as `collect_estimate.estimate` does."""
    from r2v.stages import collect_estimate

    collect_estimate.require_paid(config)
    if not is_dotted(config.env.benchmark):
        return collect_estimate.describe(config)
    known = known_here(config)
    return "\n".join(table([planned_work("collect", config, known, Allotted(), Path())], config, known))


def rest_line(config: Config, row: Job, root: Path, *, itself: bool = False) -> str | None:
    """Likely dollars and the bound of the stages after one, or (`itself`) of it too; None where no paid teacher is
    asked, or the plan cannot be made: no line is worth a stage."""
    if not config.asks_provider:
        return None
    try:
        names = [one.name for one in selection(config)[0]]
        rest = names[names.index(row.name) + (not itself) :]
        jobs = planned_jobs(config, known_here(config, root), {name: Allotted() for name in rest}, root)
    except (R2VError, OSError, ValueError, LookupError, TypeError):
        return None
    paid = [one for one in jobs if questions(one.work, config)]
    at_most = _total_usd(paid)
    if not paid or at_most is None or math.isnan(at_most):
        return None
    likely = sum(one.likely.usd for one in paid if one.likely is not None)
    return f"the rest ({paid[0].name} to {paid[-1].name}): likely ${likely:,.2f}, at most ${at_most:,.2f}"


def warnings(jobs: Sequence[PlannedWork]) -> list[str]:
    """A line for each job, or unit of one, that takes longer than its time limit, with what makes it shorter."""
    lines = []
    for one in jobs:
        limit = one.allotted.seconds or 0.0
        lines += [
            f"{one.name}: one task of {part.part.name} takes about {duration(part.unit_seconds)}, and what a task has "
            f"come to is kept when it ends: under --time={duration(limit)} it never does; fewer: {part.part.remedy}"
            for part in one.never_kept
        ]
        if one.too_long and not one.never_kept:
            starts = math.ceil(one.wall / limit)
            lines.append(
                f"{one.name}: about {duration(one.wall)} under --time={duration(limit)}, so it takes {starts} starts "
                f"(finished tasks are kept, the job is put back into the queue); {_shorter(one)}"
            )
    return lines


def _shorter(one: PlannedWork) -> str:
    """The remedies of what takes longest."""
    longest = max(one.parts, key=lambda part: part.seconds.wall)
    slow = longest.seconds
    by = {
        slow.environment: "more of rollout.workers",
        slow.model: f"{'more or faster GPUs' if longest.part.total.trained else 'a faster GPU'} (--gres)",
        slow.llm: "more of teacher.max_concurrent",
    }
    other = "more of rollout.sites" if slow.alone else by[max(by)]
    return f"most of it {longest.part.name}: less of {longest.part.remedy}, or {other}"


def _above(jobs: Sequence[PlannedWork], config: Config, known: Known) -> list[str]:
    """A line for each count of tasks that is above what its split has, as the stage itself will say."""
    counts = dict.fromkeys(count for one in jobs if one.parts for count in job(one.name).task_counts)
    asked = [(key, attrgetter(key)(config), split) for key, split in counts]
    return [
        f"{key}={count}: there are {known.tasks[split]} tasks in the {split} split; all of them are played"
        for key, count, split in asked
        if count is not None and count > known.tasks[split]
    ]


def _basis(jobs: Sequence[PlannedWork], config: Config, known: Known) -> list[str]:
    split = ", ".join(f"{count} {name}" for name, count in known.tasks.items() if count)
    asked = "" if known.listed else " (estimated: the benchmark itself is not asked here; no world can be copied)"
    bounds: dict[str, dict[str, None]] = {}
    for part in (part for one in jobs for part in one.parts if part.part.at_most):
        bounds.setdefault(part.part.at_most, {})[part.part.name] = None
    if known.to_count:
        return [uncounted_line(config, known), basis(config)]
    return [
        f"tasks: {split}{asked}",
        *_above(jobs, config, known),
        *([_CHANGING.format(known.changing, sum(known.tasks.values()))] if known.changing else []),
        *known.pace.lines(),
        *(f"at most ({', '.join(names)}): {why}" for why, names in bounds.items()),
        *(f"likely dollars of {one.name}: {one.likely.how}" for one in jobs if one.likely),
        "questions count each time, although equal ones are answered once, and tokens are about what prompts hold; "
        "training counts each row as policy.max_seq_len tokens",
        basis(config),
    ]


def time_basis(jobs: Sequence[PlannedWork]) -> list[str]:
    """Assumptions behind the times, and the runs behind the measured ones."""
    others = " of the others" if any(one.measured for one in jobs) else ""
    return [
        *(f"time of {one.name}: {run}" for one in jobs for run in one.measured),
        f"times{others}: estimated; models, environments (so many workers at a time) and the LLM by direct calls, one "
        "after another, though they overlap",
        f"models: {UTILISATION:.0%} of the operations in the card's datasheet (that of {ASSUMED} where its type is not "
        f"known), {BANDWIDTH:.0%} of its bandwidth, training with gradient checkpointing; a bundled model: "
        f"{BUNDLED_SECONDS} s of a CPU for a question or a row",
    ]
