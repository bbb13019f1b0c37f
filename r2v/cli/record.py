"""`r2v record -- CMD ...`: one run of any agent, its requests recorded and booked, its outcome logged."""

from __future__ import annotations

import argparse
import asyncio

from r2v.cli.options import Parser, add_allow_env, add_config_options, load_config
from r2v.cli.serve import add_llm_options, llm_overrides
from r2v.log import logger


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add `record`."""
    about = "run a command, and record what it asks an LLM, what that costs and whether it succeeds"
    parser = commands.add_parser(
        "record",
        help=about,
        description="Run a command with OPENAI_BASE_URL, ANTHROPIC_BASE_URL and their keys set to a server of its own. "
        "It succeeds if it exits with 0, or as it posts to R2V_FEEDBACK_URL. The exit code is the command's.",
    )
    add_llm_options(parser)
    parser.add_argument("--task", metavar="ID", default="task", help="the task's id in the records (default: task)")
    add_config_options(parser)
    add_allow_env(parser)
    parser.add_argument("command", nargs="+", metavar="CMD", help="the command and its words, behind --")
    parser.set_defaults(act=_act)


def _act(arguments: argparse.Namespace) -> int:
    llm_overrides(arguments)
    config = load_config(arguments)
    from r2v.serve.record import record_command

    done = asyncio.run(record_command(arguments.command, config, task=arguments.task))
    logger.info("  %s", done.line)
    return done.exit_code
