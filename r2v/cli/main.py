"""The command line: `r2v <command>`, the entry point of scripts, Slurm jobs and `make`.

Errors become one line on stderr and an exit code of r2v.errors, listed by `r2v --help` (`r2v.cli.boundary`).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from r2v import __version__
from r2v.cli import stages
from r2v.cli.boundary import guarded, require_text, require_usable_paths
from r2v.cli.groups import GroupedParser
from r2v.cli.options import Parser, add_allow_env, config_words, imports_nothing
from r2v.environment import spare_loopback
from r2v.errors import EXIT_CODES, MissingInput
from r2v.extensions import importing_nothing
from r2v.llm.providers import keys
from r2v.signals import interrupt_on_stop
from r2v.storage.record import recording


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; without one, print the help."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    spare_loopback()
    words = list(sys.argv[1:] if argv is None else argv)
    return guarded(lambda: _act(words))


def _act(words: list[str]) -> int | None:
    if not words:
        build_parser().print_help()
        return None
    with recording():
        interrupt_on_stop()
        require_text(words)
        arguments = (stage_parser() if stages.is_stage(words) else build_parser()).parse_args(words)
        require_usable_paths(arguments)
        keys.allow(arguments.allow_env)
        act: Callable[[argparse.Namespace], int | None] = arguments.act
        with importing_nothing() if imports_nothing(arguments) else nullcontext():
            try:
                return act(arguments)
            except MissingInput as error:
                raise error.configured(config_words(arguments)) from None


def stage_parser() -> argparse.ArgumentParser:
    """Return the parser of stage commands alone: a stage's job waits for these imports and needs no other command."""
    parser, commands = _empty_parser()
    stages.add_commands(commands)
    return parser


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    from r2v.cli import experiments, groups, interchange, providers, results, serve, worlds
    from r2v.cli.cluster import chains, engine, plan, project
    from r2v.cli.game import commands as game

    parser, commands = _empty_parser()
    groups.add_help(commands, parser)
    results.add_run(commands)
    stages.add_commands(commands)
    project.add_commands(commands)
    chains.add_commands(commands)
    providers.add_commands(commands)
    plan.add_commands(commands)
    game.add_commands(commands)
    results.add_commands(commands)
    serve.add_commands(commands)
    engine.add_commands(commands)
    worlds.add_commands(commands)
    interchange.add_commands(commands)
    experiments.add_commands(commands)
    groups.add_completion(commands, parser)
    return parser


def _empty_parser() -> tuple[GroupedParser, argparse._SubParsersAction[Parser]]:
    parser = GroupedParser(
        prog="r2v",
        description="Distil, verify, route. Start with `r2v init DIR`; there, `r2v run --help`.",
        epilog=f"exit codes: {'; '.join(f'{code} {meaning}' for code, meaning in EXIT_CODES.items())}",
    )
    add_allow_env(parser)
    parser.add_argument("--version", action="version", version=f"r2v {__version__}")
    return parser, parser.add_subparsers(title="commands", metavar="<command>", required=True, parser_class=Parser)
