"""The dry run: what each job would play and ask, what that costs, and how long it takes under the resources asked.

    jobs = [planned_work("evaluate", config, known, allotted)]
    print("\\n".join(table(jobs, config, known)))

Nothing is played. Episodes are as long as the benchmark's pace says
(`r2v.envs.pace`); what rests on an assumption is printed as one, below the table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

from r2v.config import Config
from r2v.console import text_table
from r2v.memory.measured import MeasuredTime, measured_time
from r2v.memory.stage_table import duration
from r2v.pipeline.jobs import job
from r2v.pipeline.plan.case import Part
from r2v.pipeline.plan.known import Known
from r2v.pipeline.plan.makes import makes_of
from r2v.pipeline.plan.price import basis, dollars
from r2v.pipeline.plan.stage_parts import parts_of
from r2v.pipeline.plan.wall import Allotted, Seconds, time_of, training_seconds, unit_seconds, workers_of, world_seconds
from r2v.pipeline.plan.workload import Workload
from r2v.storage.durations import CPU, Duration

_CHANGING = (
    "{} of {} tasks change a world that others share: played alone on a site set, never branched, so that candidates, "
    "router features, oracle and gains leave them out"
)


@dataclass(frozen=True, kw_only=True)
class TimedPart:
    """A part of a job with its time and price."""

    part: Part
    world_seconds: float
    seconds: Seconds
    unit_seconds: float
    usd: float | None

    @property
    def name(self) -> str:
        """Of the part."""
        return self.part.name


@dataclass(frozen=True, kw_only=True)
class PlannedWork:
    """A job: its parts, and the training that is no part of playing."""

    name: str
    parts: tuple[TimedPart, ...]
    training: float
    """Seconds; nan where the model's size is not known."""
    allotted: Allotted
    measured: MeasuredTime | None = None
    """What an earlier run of the stage says of the time."""

    @property
    def work(self) -> Workload:
        """All parts together."""
        return sum((one.part.total for one in self.parts), Workload())

    @property
    def world_seconds(self) -> float:
        """One world after another."""
        return sum(one.world_seconds for one in self.parts)

    @property
    def wall(self) -> float:
        """Seconds from start to end, as an earlier run says or else estimated; nan where the model's size is not
        known."""
        return self.estimated if self.measured is None else self.measured.seconds

    @property
    def estimated(self) -> float:
        """The estimate of `wall`."""
        return self.training + sum(one.seconds.wall for one in self.parts)

    @property
    def gpu_hours(self) -> float:
        """What the job and its helpers hold while they run."""
        training = min(self.training, self.wall)
        playing = self.wall - training
        return self.allotted.gpus * (training + (1 + self.allotted.helpers) * playing) / 3600

    @property
    def usd(self) -> float | None:
        """List price; None where it is not known."""
        prices = [one.usd for one in self.parts]
        return None if None in prices else sum(price for price in prices if price is not None)

    @property
    def too_long(self) -> bool:
        """Whether it takes longer than its time limit, so that it needs more than one start."""
        return self.allotted.seconds is not None and self.wall > self.allotted.seconds

    @property
    def never_kept(self) -> list[TimedPart]:
        """Parts of which a single unit takes longer than the time limit: they never end."""
        limit = self.allotted.seconds
        return [one for one in self.parts if limit is not None and one.unit_seconds > limit]


def planned_work(
    name: str, config: Config, known: Known, allotted: Allotted, root: Path | None = None, *, here: bool = False
) -> PlannedWork:
    """The work of one job under a configuration. Its time goes by an earlier run of the stage below `root` (None: by
    none), where there is one of this benchmark and model on such a machine as is allotted, or, if it is `here`, on
    any."""
    planned = _estimated(name, config, known, allotted)
    if root is None or math.isnan(planned.estimated):
        return planned

    def of_run(made: Config, run: Duration) -> float:
        return _estimated(name, made, known, replace(allotted, cpus=run.cpus, helpers=0)).estimated

    gpu = None if here else allotted.card if allotted.gpus else CPU
    return replace(planned, measured=measured_time(name, config, planned.estimated, of_run, gpu=gpu, root=root))


def _estimated(name: str, config: Config, known: Known, allotted: Allotted) -> PlannedWork:
    makes, parts = makes_of(name, config), list[TimedPart]()
    for made, under in makes:
        found = parts_of(made, under, known)
        parts += [_timed(part if made == name else _of_stage(made, part), under, known, allotted) for part in found]
    training = sum(training_seconds(made, under, allotted) for made, under in makes)
    return PlannedWork(name=name, parts=_merged(parts), training=training, allotted=allotted)


def _of_stage(made: str, part: Part) -> Part:
    label = made if made == part.name else f"{made} {part.name}"
    return replace(part, name=label, remedy="ablations.names")


def _timed(part: Part, config: Config, known: Known, allotted: Allotted) -> TimedPart:
    return TimedPart(
        part=part,
        world_seconds=world_seconds(part.total, known.pace),
        seconds=time_of(
            part.total, config, known.pace, allotted, shared=part.shared, blocks=part.blocks, alone=part.alone
        ),
        unit_seconds=unit_seconds(part.unit, config, known.pace, allotted),
        usd=dollars(part.total, config),
    )


def _merged(parts: Sequence[TimedPart]) -> tuple[TimedPart, ...]:
    """Parts of one name together, as several ablations have them."""
    found: dict[str, TimedPart] = {}
    for one in parts:
        before = found.get(one.name)
        found[one.name] = one if before is None else _sum(before, one)
    return tuple(found.values())


def _sum(a: TimedPart, b: TimedPart) -> TimedPart:
    longer = a if a.unit_seconds >= b.unit_seconds else b
    both = replace(
        a.part, total=a.part.total + b.part.total, unit=longer.part.unit, blocks=a.part.blocks + b.part.blocks
    )
    return TimedPart(
        part=both,
        world_seconds=a.world_seconds + b.world_seconds,
        seconds=a.seconds + b.seconds,
        unit_seconds=longer.unit_seconds,
        usd=None if a.usd is None or b.usd is None else a.usd + b.usd,
    )


HEAD = (
    *("job", "episodes", "branches", "world", "student", "LLM", "verifier", "LLM tokens", "dollars", "GPU-hours"),
    *("wall", "limit", ""),
)
"""Columns: counts of what is played, world time one after another, questions, and what they come to."""


def table(jobs: Sequence[PlannedWork], config: Config, known: Known) -> list[str]:
    """The table of jobs and their parts, what does not fit, and what all of it rests on."""
    rows: list[tuple[str, ...]] = [HEAD]
    for one in jobs:
        rows.append(_job_row(one))
        rows += [_part_row(part) for part in one.parts] if len(one.parts) > 1 else []
    rows.append(_total_row(jobs))
    return [*text_table(rows, right=range(1, 11)).splitlines(), "", *warnings(jobs), *_basis(jobs, config, known)]


def _counts(work: Workload, worlds: float, usd: float | None) -> tuple[str, ...]:
    return (
        *(_count(value) for value in (work.episodes, work.branches)),
        duration(worlds) if worlds else "",
        *(_count(value) for value in (work.student, work.llm, work.verifier)),
        _tokens(work.llm_in + work.llm_out),
        _dollars(usd),
    )


def _job_row(one: PlannedWork) -> tuple[str, ...]:
    limit = one.allotted.seconds
    bound = any(part.part.at_most for part in one.parts)
    gpu = f"{one.gpu_hours:,.1f}" if one.allotted.gpus else ""
    state = [*["at most"] * bound, *["DOES NOT FIT"] * bool(one.too_long or one.never_kept)]
    return (
        one.name,
        *_counts(one.work, one.world_seconds, one.usd),
        gpu,
        _wall(one.wall),
        "" if limit is None else duration(limit),
        ", ".join(state),
    )


def _part_row(one: TimedPart) -> tuple[str, ...]:
    counts = _counts(one.part.total, one.world_seconds, one.usd)
    return (f"  {one.name}", *counts, "", _wall(one.seconds.wall), "", "at most" if one.part.at_most else "")


def _total_row(jobs: Sequence[PlannedWork]) -> tuple[str, ...]:
    prices = [one.usd for one in jobs]
    usd = None if None in prices else sum(price for price in prices if price is not None)
    counts = _counts(sum((one.work for one in jobs), Workload()), sum(one.world_seconds for one in jobs), usd)
    gpu = sum(one.gpu_hours for one in jobs)
    return ("all", *counts, f"{gpu:,.1f}" if gpu else "", _wall(sum(one.wall for one in jobs)), "", "")


def _wall(seconds: float) -> str:
    return "unknown" if math.isnan(seconds) else duration(seconds)


def _dollars(usd: float | None) -> str:
    if usd is None:
        return "unknown"
    return "" if not usd else f"{usd:,.2f}" if usd < 100 else f"{usd:,.0f}"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value else ""


def _tokens(value: float) -> str:
    return "" if not value else f"{value / 1e6:,.1f} M" if value >= 1e6 else f"{value:,.0f}"


def warnings(jobs: Sequence[PlannedWork]) -> list[str]:
    """A line for each job, or unit of one, that takes longer than its time limit, with what makes it shorter."""
    lines = []
    for one in jobs:
        limit = one.allotted.seconds or 0.0
        lines += [
            f"{one.name}: one task of {part.name} takes about {duration(part.unit_seconds)}, and what a task has come "
            f"to is kept when it ends: under --time={duration(limit)} it never does; fewer: {part.part.remedy}"
            for part in one.never_kept
        ]
        if one.too_long and not one.never_kept:
            starts = math.ceil(one.wall / limit)
            lines.append(
                f"{one.name}: about {duration(one.wall)} under --time={duration(limit)}, so it takes {starts} starts "
                f"(finished tasks are kept, the job is put back into the queue); {_shorter(one)}"
            )
    return [*lines, ""] if lines else []


def _shorter(one: PlannedWork) -> str:
    """The remedies of what takes longest."""
    if not one.parts or one.training > one.wall / 2:
        return "shorter: more GPUs (--gres), fewer epochs or tasks"
    longest = max(one.parts, key=lambda part: part.seconds.wall)
    slow = longest.seconds
    by = {
        slow.worlds: "rollout.workers",
        slow.models: "a faster GPU (--gres)",
        slow.llm: "teacher.max_concurrent",
        slow.alone: "rollout.sites",
    }
    return f"most of it {longest.name}: less of {longest.part.remedy}, or more of {by[max(by)]}"


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
        bounds.setdefault(part.part.at_most, {})[part.name] = None
    workers = workers_of(config, known.pace, Allotted())
    helped = [f"{one.name} {one.allotted.helpers}" for one in jobs if one.allotted.helpers]
    others = " of the others" if any(one.measured for one in jobs) else ""
    return [
        f"tasks: {split}{asked}",
        *_above(jobs, config, known),
        *([_CHANGING.format(known.changing, sum(known.tasks.values()))] if known.changing else []),
        *known.pace.lines(),
        *(f"at most ({', '.join(names)}): {why}" for why, names in bounds.items()),
        "questions count each time, although equal ones are answered once, and tokens are about what prompts hold",
        basis(config),
        *([f"helpers that play at once beside a job, a block at a time: {', '.join(helped)}"] if helped else []),
        *(f"wall of {one.name}: {one.measured}" for one in jobs if one.measured),
        f"wall{others}: estimated, {workers} worlds at a time (rollout.workers), models as `r2v plan` estimates them, "
        "the LLM by direct calls; one after another, though they overlap",
    ]
