"""The pipeline in one process and its results: `r2v run`, `pilot`, `stages`, `verify-results`, `gc`, ..."""

from __future__ import annotations

import argparse
import os
import sys
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from r2v.cli.options import Parser, add_config_options, add_force, add_word, load_config
from r2v.console import text_table
from r2v.errors import UsageError
from r2v.log import logger
from r2v.pipeline.jobs import JOBS, job

if TYPE_CHECKING:
    from r2v.config import Config
    from r2v.evaluation.audit.verify import Verified
    from r2v.experiments.ablation_audit import VerifiedStudy


def add_run(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add `run`."""
    about = "the whole pipeline in this process, reusing what is up to date"
    run = add_word(commands, "run", about, _run, more="The stages run in the order of `r2v stages`.")
    add_config_options(run)
    run.set_defaults(sends_keys=True, runs_code=True)
    add_force(run)
    run.add_argument(
        "--from",
        dest="start",
        metavar="JOB",
        help="first job to run, by name or number; it reads published inputs (default: the first)",
    )
    run.add_argument(
        "--without", nargs="+", default=[], metavar="JOB", help="jobs to leave out, by name or number (default: none)"
    )
    run.add_argument(
        "--dry-run",
        action="store_true",
        help="print the episodes, requests, dollars and time of each stage, and run nothing",
    )


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the pilot, and the commands that show, check or clean results."""
    _add_pilot(commands)
    _add_gc(commands)
    about = "list the stages: number, job, command, inputs, and the place of the published result"
    table = add_word(commands, "stages", about, _stages)
    add_config_options(table)
    about = "replay every episode of a results folder, or of ablations, and rebuild every table; no model is called"
    verify = add_word(commands, "verify-results", about, _verify)
    verify.add_argument("folder", type=Path, metavar="DIR", help="results/mrp, results/ablations/mrp, ...")
    verify.add_argument(
        "--trust",
        action="store_true",
        help="import the folder's benchmark if it is not R2V's own, which runs its code (default: refused)",
    )
    verify.add_argument(
        "--all",
        action="store_true",
        dest="whole",
        help="replay every calibration episode (default: a tenth of them, sampled by the folder's content)",
    )
    verify.set_defaults(runs_code=True)  # only with --trust
    about = "a results folder as one page: claims, figures, every episode"
    more = "It opens offline and can be copied anywhere. Without --verify nothing is executed."
    report = add_word(commands, "report", about, _report, more=more)
    report.add_argument("folder", type=Path, metavar="DIR", help="a results folder, such as results/mrp")
    report.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="folder of the report; an earlier one is replaced (default: results/report/NAME for results/NAME)",
    )
    report.add_argument(
        "--ablations",
        type=Path,
        metavar="DIR",
        help="results of its ablations (default: results/ablations/NAME for results/NAME, if it exists)",
    )
    report.add_argument(
        "--figures",
        action="store_true",
        help="also write every panel of every figure as PDF and SVG, in the width of a paper's column, to figures/",
    )
    report.add_argument(
        "--verify",
        action="store_true",
        help="audit the results and their ablations first, like `r2v verify-results`, and write hash and date into the "
        "page (default: the page calls them not verified)",
    )
    add_force(report)
    registry = add_word(commands, "registry", "list the collected runs, or rebuild their index", _registry)
    registry.add_argument(
        "what",
        nargs="?",
        choices=["list", "rebuild"],
        default="list",
        help="list: one line per run; rebuild: write data/registry.json from the runs' manifests (default: list)",
    )
    show = add_word(commands, "config", "print the resolved configuration, itself a valid --config file", _config)
    add_config_options(show)
    show.add_argument(
        "--reference",
        action="store_true",
        help="print every key instead, as a table: type, default, allowed values and meaning",
    )


def _add_pilot(commands: argparse._SubParsersAction[Parser]) -> None:
    about = "play a few tasks with the small and with the large model, to estimate a router's gain and its cost"
    more = "It plays calibration tasks; the full run that follows reuses all paid replies."
    parser = add_word(commands, "pilot", about, _pilot, more=more)
    add_config_options(parser)
    parser.set_defaults(sends_keys=True, runs_code=True)
    parser.add_argument(
        "--tasks", type=Path, metavar="FILE", help="file of tasks, one per line (default: the benchmark's tasks)"
    )
    parser.add_argument(
        "--cmd",
        metavar="COMMAND",
        help="the agent that plays a task of --tasks, such as 'mini -t {task} -y'; it succeeds if it exits with 0 "
        "(default: R2V's own)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the requests and their maximum cost, and send none"
    )


def _add_gc(commands: argparse._SubParsersAction[Parser]) -> None:
    about = "remove unreferenced artifacts, checkpoints of finished stages, and old snapshots that no chain runs"
    more = "Collected runs and journals of payments stay."
    parser = add_word(commands, "gc", about, _gc, more=more)
    parser.add_argument(
        "--dry-run", action="store_true", help="print the artifacts to remove and their bytes, and remove nothing"
    )
    parser.add_argument(
        "--unfinished",
        action="store_true",
        help="also remove unreferenced attempts that were never finished (default: kept)",
    )


def _run(arguments: argparse.Namespace) -> None:
    from r2v.pipeline.inputs import place_of, places_of
    from r2v.pipeline.local_run import local_runs
    from r2v.pipeline.report import report_of
    from r2v.pipeline.run import run_here
    from r2v.report.console import closing_lines
    from r2v.slurm.views.local import cost_lines

    config = load_config(arguments)
    if arguments.dry_run:
        return _dry_run(config, arguments)
    force = [row.name for row in JOBS] if arguments.force else []
    done = run_here(config, start=arguments.start, without=arguments.without, force=force)
    if any(stage.fresh for stage in done):
        fresh, cpu_seconds = sum(stage.fresh for stage in done), sum(stage.cpu_seconds for stage in done)
        logger.info("pipeline finished: stages_run=%d/%d cpu_s=%.0f", fresh, len(done), cpu_seconds)
        name = places_of(config).name  # a container's processes share a few process ids
        for own in (run for run in local_runs(Path()) if (run.name, run.pid) == (name, os.getpid())):
            print(*cost_lines(own), sep="\n", file=sys.stderr)
    results = place_of(config, "evaluate")
    ended = [stage.job for stage in done]
    if not any(job(name).shown for name in ended):
        return
    page = report_of(config, ended)
    folders = (
        ("tables", results / "structured_results"),
        ("episodes", results / "episodes"),
        ("ablations", place_of(config, "ablations") / "structured_results"),
        ("models", place_of(config, "bc").parent),
        ("runs", places_of(config).runs),
    )
    print(closing_lines(results, folders, page))


def _dry_run(config: Config, arguments: argparse.Namespace) -> None:
    from r2v.pipeline.plan.benchmark_facts import facts_here
    from r2v.pipeline.plan.dry_run import table, warnings
    from r2v.pipeline.plan.jobs_to_do import plan
    from r2v.slurm.estimate import planned_by_headers

    steps = plan(config, start=arguments.start, without=arguments.without)
    due = [step.job for step in steps if arguments.force or step.state != "up to date"]
    facts = facts_here(config)
    for step in steps:
        print(f"{step.job.name:16} {step.state}: {step.why}")
    if not due:
        print("nothing is to be done")
        return
    here = planned_by_headers(config, due, facts, helpers=0, seconds=None)  # a local run has neither
    as_jobs = warnings(planned_by_headers(config, due, facts))
    more = ["", "as Slurm jobs, under their headers:", *as_jobs] if as_jobs else []
    print("\n".join(["", *table(here, config, facts), *more]))


def _stages(arguments: argparse.Namespace) -> None:
    from r2v.pipeline.inputs import place_of, places_of

    config = load_config(arguments)
    rows = [("#", "job", "command", "reads", "result")]
    for row in JOBS:
        folder = places_of(config).runs if row.place is None else place_of(config, row.name)
        rows.append((row.number, row.name, " ".join(("r2v", *row.argv)), ", ".join(row.inputs), f"{folder}/"))
    print(text_table(rows))


def _verify(arguments: argparse.Namespace) -> None:
    print(_audit(arguments.folder, arguments.trust, arguments.whole))


def _audit(folder: Path, trust: bool = False, whole: bool = False) -> Verified | VerifiedStudy:
    """Audit a folder of an evaluation or of an ablation study."""
    from r2v.evaluation.audit.verify import verify_results
    from r2v.experiments.ablation_audit import is_study, verify_ablations

    return (verify_ablations if is_study(folder) else verify_results)(folder, trust=trust, whole=whole)


def _report(arguments: argparse.Namespace) -> None:
    from r2v.report.build import build_report
    from r2v.report.sources import ablations_beside

    verified = {}
    if arguments.verify:
        beside = arguments.ablations or ablations_beside(arguments.folder)
        for folder in (arguments.folder, *([beside] if beside.exists() else [])):
            verified[folder] = f"{_audit(folder).content_sha256[:12]}, {date.today()}"
    path = build_report(
        arguments.folder,
        arguments.output,
        arguments.ablations,
        figures=arguments.figures,
        verified=verified,
        force=arguments.force,
    )
    print(f"{path}\nopen it in a browser: file://{path.absolute()}")


def _registry(arguments: argparse.Namespace) -> None:
    from r2v.data.registry import DataRegistry

    registry = DataRegistry()
    if arguments.what == "rebuild":
        registry.rebuild()
    summary = registry.summary()
    if len(summary.splitlines()) == 1:
        command = " ".join(("r2v", *job("collect").argv))
        summary = f"no runs under {Path('data/runs').absolute()}; `{command} --config FILE` collects one"
    print(summary)


def _config(arguments: argparse.Namespace) -> None:
    from r2v.config import to_yaml
    from r2v.config.reference import markdown

    print(markdown() if arguments.reference else to_yaml(load_config(arguments)).rstrip("\n"))


def _pilot(arguments: argparse.Namespace) -> None:
    from r2v.pipeline.pilot import describe, pilot, pilot_of_agent

    config = load_config(arguments)
    if (arguments.tasks is None) != (arguments.cmd is None):
        raise UsageError("--tasks and --cmd are given together: a file of tasks and the agent that plays one")
    if arguments.tasks is not None and arguments.dry_run:
        raise UsageError("--dry-run: an agent's requests cannot be predicted; teacher.max_usd caps their cost")
    if arguments.dry_run:
        return print(describe(config))
    result = pilot(config) if arguments.tasks is None else pilot_of_agent(config, arguments.tasks, arguments.cmd)
    logger.info("pilot finished: advice=%s", result.figures.verdict().advice)
    print("\n".join(result.lines))
    print(f"  page         {result.page}")


def _gc(arguments: argparse.Namespace) -> None:
    from r2v.pipeline.gc import garbage, remove

    items = garbage(Path(), unfinished=arguments.unfinished)
    gone = items if arguments.dry_run else [item for item in items if remove(item)]
    rows = [("bytes", "artifact", "why"), *((f"{item.size:,}", item.folder.name, item.why) for item in gone)]
    if gone:
        print(text_table(rows, right=(0,)))
    total = sum(item.size for item in gone)
    verb = "would be removed" if arguments.dry_run else "removed"
    print(f"{len(gone)} {'place' if len(gone) == 1 else 'places'}, {total:,} bytes {verb}")
