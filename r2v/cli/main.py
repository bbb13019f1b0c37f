"""The command line: `r2v <command>`. Scripts, Slurm jobs and `make` all come through here.

Errors become one line on stderr and an exit code of r2v.errors, which `r2v --help` lists.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from r2v import __version__
from r2v.cli import cluster, completion, game, plan, providers, results, stages
from r2v.cli.options import Parser
from r2v.errors import DISK_REFUSES, EXIT_CODES, EnvironmentFault, Interrupted, R2VError
from r2v.log import logger, setup
from r2v.signals import interrupt_on_stop
from r2v.storage.record import recording


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    setup()
    try:
        with recording():
            interrupt_on_stop()
            arguments = build_parser().parse_args(list(sys.argv[1:] if argv is None else argv))
            act: Callable[[argparse.Namespace], int] = arguments.act
            return act(arguments)
    except R2VError as error:
        logger.error("r2v: %s", " ".join(str(error).split()))
        return error.exit_code
    except KeyboardInterrupt:
        logger.error("r2v: interrupted; the same command continues where this one stopped")
        return Interrupted.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in DISK_REFUSES:
            raise
        logger.error(
            "r2v: cannot write %s: %s; make room and run the same command again, finished work is kept",
            error.filename or "",
            error.strerror,
        )
        return EnvironmentFault.exit_code


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = Parser(
        prog="r2v",
        description="Distil, verify, route. Start with `make mrp`, or `r2v run --help`.",
        epilog=f"exit codes: {'; '.join(f'{code} {meaning}' for code, meaning in EXIT_CODES.items())}",
    )
    parser.add_argument("--version", action="version", version=f"r2v {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="<command>", required=True, parser_class=Parser)
    results.add_run(commands)
    stages.add_commands(commands)
    cluster.add_commands(commands)
    providers.add_commands(commands)
    plan.add_commands(commands)
    game.add_commands(commands)
    results.add_commands(commands)
    completion.add_commands(commands, parser)
    return parser
