"""Shell completion: `r2v completion bash` prints a script that completes every command and option of `r2v`.

    eval "$(r2v completion bash)"                                          # in ~/.bashrc
    r2v completion zsh > ~/.zfunc/_r2v                                     # a folder of $fpath, before compinit

The script is generated from the parser by shtab and runs no Python when a key is pressed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SHELLS = ("bash", "zsh", "fish", "tcsh")
_FILE_METAVARS = ("FILE", "DIR", "FOLDER", "JOB_FOLDER", "CHECKPOINT", "CKPT", "SPEC")


def add_commands(commands: argparse._SubParsersAction[Any], parser: argparse.ArgumentParser) -> None:
    """Add `completion`, which describes `parser` as it is when the command runs."""
    about = "print a script that completes r2v's commands and options in a shell"
    command = commands.add_parser("completion", help=about, description=f"{about[0].upper()}{about[1:]}.")
    command.add_argument("shell", choices=SHELLS, help="the shell to print it for")
    command.set_defaults(act=lambda arguments: print_script(parser, arguments.shell))


def print_script(parser: argparse.ArgumentParser, shell: str) -> int:
    """Print the completion script of a parser; returns the exit code."""
    import shtab

    for action in _actions(parser):
        # argparse does not know which of its strings are files; without this nothing would be completed there.
        if action.type is Path or action.metavar in _FILE_METAVARS:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, shell=shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Every option and argument of a parser and of the commands below it."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
