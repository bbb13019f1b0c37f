"""Pilot: "is routing worth it on my tasks?", answered on a few of them, with the price of the full run.

    outcome = pilot(config)           # plays the missing episodes, under the pipeline's cap
    print("\\n".join(outcome.lines))   # outcome.page has the same text

A pilot is made like a stage, so that a stopped one resumes, and is paid by its pipeline; no other stage reads it. The
pilot of an agent runs the agent's command on each task with the small model, then with the large one; success is
decided as in `r2v record`.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from r2v.config import Config, TeacherConfig, identity
from r2v.config.methods import STRONG, WEAK
from r2v.console import text_table
from r2v.data.schema import from_dict
from r2v.errors import EnvironmentFault, InputError, R2VError, UsageError
from r2v.evaluation.pilot import PilotFigures, Play, WayOfPlaying
from r2v.event_loop import run_async
from r2v.llm.providers.provider_requests import canonical_json
from r2v.llm.providers.spending.journal_report import read_journal
from r2v.llm.providers.spending.project import ProjectLedger
from r2v.llm.providers.spending.quota import paying
from r2v.log import logger
from r2v.pipeline.graph import selection
from r2v.pipeline.inputs import places_of, published
from r2v.pipeline.jobs import job
from r2v.pipeline.plan.benchmark_facts import BenchmarkFacts, facts_here
from r2v.pipeline.plan.dry_run import PlannedWork, planned_jobs
from r2v.pipeline.plan.plan_inputs import Part, PlanInputs
from r2v.pipeline.plan.price import dollars, questions
from r2v.pipeline.plan.wall import Allotted
from r2v.pipeline.plan.workload import Workload, branches, episode
from r2v.pipeline.ready import charges, require_cap
from r2v.pipeline.rows import Job
from r2v.pipeline.run import run_job
from r2v.randomness import digest
from r2v.report.elements import pilot_page
from r2v.stages.pilot import PILOT_FIGURES
from r2v.storage.files import write_text

if TYPE_CHECKING:
    from r2v.serve.record import RecordedCommand


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
class PilotOutcome:
    """Figures, printed lines and page of a pilot."""

    figures: PilotFigures
    lines: tuple[str, ...]
    page: Path


def pilot(config: Config, root: Path = Path()) -> PilotOutcome:
    """Play the pilot's missing tasks and write its page. A policy of weights is the published one. Raise as `run_job`
    and `published` do."""
    inputs = {} if config.policy.is_api else {"preference": published(config, "preference", root)}
    require_cap(config, [PILOT], root)
    artifact = run_job(config, PILOT, inputs, root=root).artifact
    recorded = json.loads(artifact.file(PILOT_FIGURES).read_text())
    figures, steps = from_dict(PilotFigures, recorded["figures"]), recorded["steps"]
    places = places_of(config, root)
    page = places.published(str(PILOT.place)).with_suffix(".html")
    return written(config, config.env.benchmark, figures, steps, page, _costs(config, root, artifact.folder))


def written(
    config: Config, tasks: str, figures: PilotFigures, steps: dict[str, float], page: Path, costs: Sequence[str]
) -> PilotOutcome:
    """Write the page of a pilot. tasks: name of the played tasks; steps: method -> mean steps of an episode."""
    rows, notes = _rows(config, figures, steps), [*_notes(figures), *costs]
    title = f"{tasks}: {config.policy.model_name} and {config.teacher.model_name}"
    write_text(page, pilot_page(title, figures.verdict().text, rows, notes))
    table = text_table(rows, right=range(1, len(rows[0]))).splitlines()
    return PilotOutcome(figures=figures, lines=(figures.verdict().text, "", *table, "", *notes), page=page)


def _rows(config: Config, figures: PilotFigures, steps: dict[str, float]) -> list[tuple[str, ...]]:
    def row(name: str, way: WayOfPlaying, length: float | None, *, bound: bool = False) -> tuple[str, ...]:
        low, high = way.interval
        interval = "" if bound else f"[{low:.2f}, {high:.2f}]"
        return name, f"{way.success:.3f}", interval, f"{1000 * way.usd:.3g}", f"{length:.1f}" if length else ""

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
    notes = [
        f"{tasks} tasks: {len(large)} are solved by the large model alone{_named(large)}, {len(small)} by "
        f"the small one alone{_named(small)}"
    ]
    if (least := figures.detectable(tasks)) is not None:
        counts = [(count, figures.detectable(count)) for count in (100, 200, 400)]
        more = ", ".join(f"{least:.2f} on {count}" for count, least in counts if least is not None)
        notes.append(f"least difference in success that is found with 80 % power: {least:.2f} on these tasks, {more}")
    return notes


def _named(tasks: Sequence[str]) -> str:
    shown = ", ".join(tasks[:3]) + (", ..." if len(tasks) > 3 else "")
    return f" ({shown})" if tasks else ""


def _costs(config: Config, root: Path, folder: Path) -> list[str]:
    """Return the lines on the pilot's bill and the price of the full run."""
    if not config.asks_provider:
        return ["nothing was paid: the benchmark's own expert answered"]
    ledger = ProjectLedger(root)
    paid = sum(ledger.book(entry).usd for entry in ledger.entries() if folder.name in Path(entry.folder).parts)
    jobs = [planned for planned in full_run(config, root) if questions(planned.work, config)]
    likely, bounds = [planned.likely.usd for planned in jobs if planned.likely], [planned.usd for planned in jobs]
    bound = "unknown" if None in bounds else f"${sum(usd for usd in bounds if usd is not None):,.2f}"
    total = f"${sum(likely):,.2f}" if likely else "unknown"
    return [
        f"this pilot was billed ${paid:.4f}; the full run (r2v run): likely {total}, at most {bound}, by stage in "
        "r2v run --dry-run"
    ]


def full_run(config: Config, root: Path) -> list[PlannedWork]:
    """Return the plan of this configuration's pipeline; empty where it cannot be made."""
    try:
        names = [row.name for row in selection(config)[0]]
        return planned_jobs(config, facts_here(config, root), {name: Allotted() for name in names}, root)
    except (R2VError, OSError, ValueError):
        return []


def describe(config: Config, root: Path = Path()) -> str:
    """Return the most episodes, requests and dollars of the pilot, in a line."""
    facts = facts_here(config, root)
    work = planned_pilot(config, facts).total
    usd = dollars(work, config)
    price = "unknown" if usd is None or math.isnan(usd) else f"${usd:,.2f}"
    requests = sum(questions(work, config).values())
    return (
        f"pilot: {work.episodes:,.0f} episodes, {requests:,.0f} requests to providers, at most {price}; "
        "nothing was asked"
    )


def planned_pilot(config: Config, facts: BenchmarkFacts) -> Part:
    """Return the pilot's work: both models alone on each task, and the oracle where worlds can be copied."""
    inputs = PlanInputs(config, facts)
    steps, tasks = inputs.student_steps, facts.of_split("calibration", config.evaluation.pilot_tasks)
    work = inputs.with_tokens(episode(steps, student=1), steps)
    work += inputs.with_tokens(episode(inputs.teacher_steps, llm=1), inputs.teacher_steps)
    if facts.copies:
        tried = branches(steps, each=2 * facts.pace.differing, copies=True, student=1)
        work += inputs.with_tokens(episode(steps, student=1, llm=1) + tried, steps)
    return Part(name="pilot", total=work.times(tasks), unit=Workload())


PLACEHOLDER = "{task}"


def pilot_of_agent(config: Config, tasks: Path, command: str, root: Path = Path()) -> PilotOutcome:
    """Play the tasks of a file, one a line, with both models, and write the page. Raise UsageError, InputError, and as
    `record_command` does."""
    words, listed = _words(command), _tasks(tasks)
    if not config.policy.is_api:
        raise UsageError("--cmd: the small model is asked through an API; set policy.provider and policy.model_name")
    small, large = config.policy.as_endpoint(config.teacher), config.teacher
    if config.teacher.max_usd is None and (charges(small) or charges(large)):
        raise UsageError("teacher.max_usd is not set, and --cmd would be billed; add a cap, such as teacher.max_usd=5")
    with paying(f"pilot-{config.serve.name}"):
        played = run_async(_play(config, {WEAK: small, STRONG: large}, listed, words, root))
    plays = {
        name: {done.task: Play(solved=done.success, usd=done.usd) for done in runs} for name, runs in played.items()
    }
    if not any(done.turns for runs in played.values() for done in runs):
        raise EnvironmentFault(
            f"{words[0]}: asked no model in any task; it has to read OPENAI_BASE_URL or ANTHROPIC_BASE_URL"
        )
    figures = PilotFigures.of(plays[WEAK], plays[STRONG], same_model=identity(small) == identity(large))
    turns = {name: fmean(done.turns for done in runs) for name, runs in played.items()}
    books = (read_journal(folder) for folder in {done.folder for runs in played.values() for done in runs})
    paid = sum(state.spent + state.lost_usd for state in books)
    page = root / "results" / "pilot" / f"{config.serve.name}.html"
    costs = [
        f"this pilot was billed ${paid:.4f}, stopped runs included; recorded sessions fit a step router (r2v record)"
    ]
    return written(config, tasks.name, figures, turns, page, costs)


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--cmd: no command line ({error})") from None
    if not any(PLACEHOLDER in word for word in words):
        raise UsageError(f"--cmd {command!r:.100}: has no {PLACEHOLDER}, which stands for a line of --tasks")
    return words


def _tasks(path: Path) -> list[str]:
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise InputError(f"--tasks {path}: cannot be read ({error})") from None
    tasks = list(dict.fromkeys(line for line in lines if line))
    if not tasks:
        raise InputError(f"--tasks {path}: holds no line; a task is a line of text")
    return tasks


async def _play(
    config: Config, endpoints: Mapping[str, TeacherConfig], tasks: Sequence[str], words: Sequence[str], root: Path
) -> dict[str, list[RecordedCommand]]:
    from r2v.serve.record import record_command, recorded

    played: dict[str, list[RecordedCommand]] = {name: [] for name in endpoints}
    for number, task in enumerate(tasks, 1):
        for name, teacher in endpoints.items():
            # recorded outcomes are reused only under the same model and command
            key = digest("pilot", canonical_json({"model": identity(teacher)}), *words).hex()[:8]
            serve = replace(config.serve, name=f"{config.serve.name}-{name}-{key}", any_model=True)
            own = replace(config, teacher=teacher, serve=serve)
            done = recorded(own, root, task=task)
            if done is None:
                typed = [word.replace(PLACEHOLDER, task) for word in words]
                done = await record_command(typed, own, root, task=task)
                logger.info("  task: n=%d/%d model=%s outcome=%s", number, len(tasks), teacher.model_name, done.line)
            played[name].append(done)
    return played
