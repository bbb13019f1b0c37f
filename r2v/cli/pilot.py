"""`r2v pilot`: is routing worth it on my tasks? Both models play a few tasks alone, under one cap."""

from __future__ import annotations

import argparse
from pathlib import Path

from r2v.cli.options import Parser, add_allow_env, add_config_options, load_config, runs_code
from r2v.errors import UsageError
from r2v.log import logger


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add `pilot`."""
    about = "play a few tasks by the small and by the large model alone: can a router gain, and what would it cost"
    parser = commands.add_parser(
        "pilot",
        help=about,
        description=f"{about[0].upper()}{about[1:]}. Calibration tasks are played; no reply is paid twice, here or by "
        "the full run that follows.",
    )
    add_config_options(parser)
    add_allow_env(parser)
    runs_code(parser)
    parser.add_argument(
        "--num-tasks",
        dest="evaluation.pilot_tasks",
        metavar="N",
        help="calibration tasks to play by either model (default: 20)",
    )
    parser.add_argument(
        "--tasks", type=Path, metavar="FILE", help="tasks of your own, one a line (default: those of the benchmark)"
    )
    parser.add_argument(
        "--cmd",
        metavar="COMMAND",
        help="the agent that plays a task of --tasks, such as 'mini -t {task} -y'; it succeeds if it exits with 0 "
        "(default: R2V's own)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be asked and what it costs at most, and ask nobody"
    )
    parser.set_defaults(act=_act)


def _act(arguments: argparse.Namespace) -> int:
    from r2v.pipeline.pilot import describe, pilot, pilot_of_agent

    config = load_config(arguments)
    if (arguments.tasks is None) != (arguments.cmd is None):
        raise UsageError("--tasks and --cmd are given together: a file of tasks and the agent that plays one")
    if arguments.tasks is not None and arguments.dry_run:
        raise UsageError("--dry-run: nobody knows what an agent will ask; teacher.max_usd bounds what it may cost")
    if arguments.dry_run:
        print(describe(config))
        return 0
    told = pilot(config) if arguments.tasks is None else pilot_of_agent(config, arguments.tasks, arguments.cmd)
    logger.info("pilot: %s", told.figures.verdict().advice)
    print("\n".join(told.lines))
    print(f"  page         {told.page}")
    return 0
