"""Groups of commands and shell completion: `r2v --help` lists the everyday commands, `r2v help GROUP` the others.

    r2v help                                                               # the groups
    r2v help cluster                                                       # the commands of one
    eval "$(r2v completion bash)"                                          # in ~/.bashrc
    r2v completion zsh > ~/.zfunc/_r2v                                     # a folder of $fpath, before compinit

The completion script is generated from the parser by shtab and runs no Python when a key is pressed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from r2v.cli.options import Parser, add_word, take_allowed
from r2v.errors import UsageError
from r2v.llm.providers.keys import OPTION
from r2v.pipeline.jobs import COMMANDS

EVERYDAY = (
    "run", "init", "doctor", "run_all", "status", "logs", "explain", "cost", "pilot", "record", "serve", "import",
    "export", "report", "help",
)  # fmt: skip
GROUPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "stages": (
        "the stages of the pipeline, one at a time",
        (*(command.name for command in COMMANDS), "stages"),
    ),
    "cluster": (
        "Slurm, GPUs and serving engines",
        ("cluster", "resume", "cancel", "graph", "plan", "engine", "prefetch"),
    ),
    "results": (
        "results, collected runs, the hub, and what they were made with",
        ("verify-results", "registry", "push", "pull", "config", "providers", "gc"),
    ),
    "worlds": ("environments of benchmarks", ("check-env", "swebench", "webarena")),
    "research": ("experiment sweeps and the AI Secret Game", ("experiments", "game")),
    "shell": ("the command line itself", ("completion",)),
}  # fmt: skip
"""Name -> description and commands."""
SHELLS = ("bash", "zsh", "fish", "tcsh")
_FILE_METAVARS = ("FILE", "DIR", "FOLDER", "JOB_FOLDER", "CHECKPOINT", "CKPT", "SPEC")


class GroupedParser(Parser):
    """The parser of `r2v`, whose help lists the everyday commands and names the groups."""

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Return the parsed arguments. Raise UsageError for --allow-env with a command that sends no key."""
        words, allowed = take_allowed(sys.argv[1:] if args is None else args)
        arguments = super().parse_args(words, namespace)
        if allowed and not getattr(arguments, "sends_keys", False):
            raise UsageError(f"{OPTION} {allowed[0]}: this command sends no key that a configuration names")
        arguments.allow_env = allowed
        return arguments

    def format_help(self) -> str:
        """Return the help text."""
        with _listing(self, EVERYDAY):
            return super().format_help()


def add_help(commands: argparse._SubParsersAction[Parser], parser: GroupedParser) -> None:
    """Add `help`."""
    about = f"list more commands: {', '.join(GROUPS)}"
    command = add_word(commands, "help", about, lambda arguments: _print_help(parser, arguments.group))
    command.add_argument("group", nargs="?", choices=tuple(GROUPS), metavar="GROUP", help="; ".join(GROUPS))


def _print_help(parser: GroupedParser, group: str | None) -> None:
    if group is None:
        return print("\n".join(f"r2v help {name:10} {about}" for name, (about, _) in GROUPS.items()))
    about, names = GROUPS[group]
    with _listing(parser, names):
        formatter = parser._get_formatter()
        formatter.start_section(about)
        formatter.add_arguments(_commands(parser)._get_subactions())
        formatter.end_section()
        print(formatter.format_help(), end="")


def _commands(parser: argparse.ArgumentParser) -> argparse._SubParsersAction[Any]:
    return next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))


@contextmanager
def _listing(parser: argparse.ArgumentParser, names: tuple[str, ...]) -> Iterator[None]:
    """Limit the parser's help to these commands, in this order."""
    commands = _commands(parser)
    every = commands._choices_actions
    by_name = {action.dest: action for action in every}
    commands._choices_actions = [by_name[name] for name in names if name in by_name]
    try:
        yield
    finally:
        commands._choices_actions = every


def add_completion(commands: argparse._SubParsersAction[Any], parser: argparse.ArgumentParser) -> None:
    """Add `completion`, which describes `parser` at the time that it runs."""
    about = "print a script that completes r2v's commands and options in a shell"
    command = add_word(commands, "completion", about, lambda arguments: print_script(parser, arguments.shell))
    command.add_argument("shell", choices=SHELLS, help="the shell to print it for")


def print_script(parser: argparse.ArgumentParser, shell: str) -> None:
    """Print the completion script of a parser."""
    import shtab

    for action in _actions(parser):
        # argparse does not know which of its strings are paths, and shtab would not complete them.
        if action.type is Path or action.metavar in _FILE_METAVARS:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, shell=shell))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield every option and argument of a parser and of its subcommands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
