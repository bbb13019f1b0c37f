"""The pilot: "is routing worth it on my tasks?", answered by a few of them, and the price of the full run.

    told = pilot(config)              # plays what is not played yet, under the pipeline's cap
    print("\\n".join(told.lines))      # told.page is the same as a page

It is made like a stage, so that a stopped one goes on, and is paid by its pipeline; no other stage reads it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from r2v.config import Config
from r2v.console import text_table
from r2v.data.schema import from_dict
from r2v.errors import R2VError
from r2v.evaluation.pilot import PilotFigures, WayOfPlaying
from r2v.llm.providers.spending.project import ProjectLedger
from r2v.pipeline.graph import selection
from r2v.pipeline.inputs import places_of, published
from r2v.pipeline.jobs import job
from r2v.pipeline.plan.case import Case, Part
from r2v.pipeline.plan.dry_run import PlannedWork, planned_jobs
from r2v.pipeline.plan.known import Known, known_here
from r2v.pipeline.plan.price import dollars, questions
from r2v.pipeline.plan.wall import Allotted
from r2v.pipeline.plan.workload import Workload, branches, episode
from r2v.pipeline.ready import require_cap
from r2v.pipeline.rows import Job
from r2v.pipeline.run import run_job
from r2v.report.pilot_page import pilot_page
from r2v.stages.pilot import PILOT_FIGURES
from r2v.storage.files import write_text

PILOT = Job(
    name="pilot",
    number="0",
    command=job("evaluate").command,
    stage="r2v.stages.pilot:STAGE",
    place="results/{prefix}pilot/{pipeline}",
    outputs=(PILOT_FIGURES, "episodes"),
    task_counts=(("evaluation.pilot_tasks", "calibration"),),
)


@dataclass(frozen=True, kw_only=True)
class ToldPilot:
    """Figures, printed lines and page of a pilot."""

    figures: PilotFigures
    lines: tuple[str, ...]
    page: Path


def pilot(config: Config, root: Path = Path()) -> ToldPilot:
    """Play the pilot's tasks, where that is not done, and write its page. A policy of weights is the published one.
    Raises as `run_job` and `published` do."""
    inputs = {} if config.policy.is_api else {"preference": published(config, "preference", root)}
    require_cap(config, [PILOT], root)
    made = run_job(config, PILOT, inputs, root=root).artifact
    told = json.loads(made.file(PILOT_FIGURES).read_text())
    figures, steps = from_dict(PilotFigures, told["figures"]), told["steps"]
    places = places_of(config, root)
    page = places.published(str(PILOT.place)).with_suffix(".html")
    return written(config, config.env.benchmark, figures, steps, page, _costs(config, root, made.folder))


def written(
    config: Config, what: str, figures: PilotFigures, steps: dict[str, float], page: Path, costs: Sequence[str]
) -> ToldPilot:
    """Write the page of a pilot. what: was played; steps: of an episode, by method."""
    rows, notes = _rows(config, figures, steps), [*_notes(figures), *costs]
    title = f"{what}: {config.policy.model_name} and {config.teacher.model_name}"
    write_text(page, pilot_page(title, figures.verdict().text, rows, notes))
    table = text_table(rows, right=range(1, len(rows[0]))).splitlines()
    return ToldPilot(figures=figures, lines=(figures.verdict().text, "", *table, "", *notes), page=page)


def _rows(config: Config, figures: PilotFigures, steps: dict[str, float]) -> list[tuple[str, ...]]:
    def row(name: str, one: WayOfPlaying, length: float | None, *, bound: bool = False) -> tuple[str, ...]:
        low, high = one.interval
        interval = "" if bound else f"[{low:.2f}, {high:.2f}]"
        return name, f"{one.success:.3f}", interval, f"{1000 * one.usd:.3g}", f"{length:.1f}" if length else ""

    rows = [
        ("", "success", "95 %", "mUSD an episode", "steps"),
        row(f"small: {config.policy.model_name}", figures.small, steps.get("slm_only")),
        row(f"large: {config.teacher.model_name}", figures.large, steps.get("llm_only")),
        row("bound of routers by task", figures.by_task, None, bound=True),
    ]
    if figures.by_step is not None:
        rows.append(row("a router that looks ahead, by step", figures.by_step, steps.get("oracle_router"), bound=True))
    return rows


def _notes(figures: PilotFigures) -> list[str]:
    small, large, tasks = figures.only_small, figures.only_large, figures.num_tasks
    found = [
        f"{tasks} tasks: {len(large)} are solved by the large model alone{_named(large)}, {len(small)} by "
        f"the small one alone{_named(small)}"
    ]
    if (least := figures.detectable(tasks)) is not None:
        counts = [(count, figures.detectable(count)) for count in (100, 200, 400)]
        more = ", ".join(f"{found:.2f} on {count}" for count, found in counts if found is not None)
        found.append(f"least difference in success that is found with 80 % power: {least:.2f} on these tasks, {more}")
    return found


def _named(tasks: Sequence[str]) -> str:
    shown = ", ".join(tasks[:3]) + (", ..." if len(tasks) > 3 else "")
    return f" ({shown})" if tasks else ""


def _costs(config: Config, root: Path, folder: Path) -> list[str]:
    """The pilot's bill and the price of the full run."""
    if not config.asks_provider:
        return ["nothing was paid: the benchmark's own expert answered"]
    ledger = ProjectLedger(root)
    paid = sum(ledger.book(entry).usd for entry in ledger.entries() if folder.name in Path(entry.folder).parts)
    jobs = [one for one in full_run(config, root) if questions(one.work, config)]
    likely, bounds = [one.likely.usd for one in jobs if one.likely], [one.usd for one in jobs]
    bound = "unknown" if None in bounds else f"${sum(usd for usd in bounds if usd is not None):,.2f}"
    total = f"${sum(likely):,.2f}" if likely else "unknown"
    return [
        f"this pilot was billed ${paid:.4f}; the full run (r2v run): likely {total}, at most {bound}, by stage in "
        "r2v run --dry-run"
    ]


def full_run(config: Config, root: Path) -> list[PlannedWork]:
    """The plan of the pipeline of this configuration; empty where it cannot be made."""
    try:
        names = [row.name for row in selection(config)[0]]
        return planned_jobs(config, known_here(config, root), {name: Allotted() for name in names}, root)
    except (R2VError, OSError, ValueError):
        return []


def describe(config: Config, root: Path = Path()) -> str:
    """Episodes, requests and price of the pilot at most, in a line."""
    known = known_here(config, root)
    work = planned_pilot(config, known).total
    usd = dollars(work, config)
    price = "unknown" if usd is None or math.isnan(usd) else f"${usd:,.2f}"
    requests = sum(questions(work, config).values())
    return (
        f"pilot: {work.episodes:,.0f} episodes, {requests:,.0f} requests to providers, at most {price}; "
        "nothing was asked"
    )


def planned_pilot(config: Config, known: Known) -> Part:
    """Its work: both models alone on each task, and the oracle, where worlds can be copied."""
    case = Case(config, known)
    steps, tasks = case.student_steps, known.of_split("calibration", config.evaluation.pilot_tasks)
    one = case.with_tokens(episode(steps, student=1), steps)
    one += case.with_tokens(episode(case.teacher_steps, llm=1), case.teacher_steps)
    if known.copies:
        tried = branches(steps, each=2 * known.pace.differing, copies=True, student=1)
        one += case.with_tokens(episode(steps, student=1, llm=1) + tried, steps)
    return Part(name="pilot", total=one.times(tasks), unit=Workload())
