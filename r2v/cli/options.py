"""Shared options: the configuration, and a parser whose errors are one line.

A flag is another spelling of a configuration key. Precedence: defaults < --config < flags < --overrides.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from r2v.constraints import VARIABLE_NAME, Range, shown
from r2v.errors import UsageError, nearest
from r2v.llm.providers.keys import OPTION

if TYPE_CHECKING:
    from r2v.config import Config


Number = TypeVar("Number", int, float)

PATH_METAVARS = ("FILE", "DIR", "FOLDER", "CHECKPOINT")
"""Metavars of options whose value is a path."""


def whole(at_least: int, at_most: int) -> Callable[[str], int]:
    """Return the type of an option for a whole number in this range."""
    return lambda text: _in_range(text, int, Range(at_least=at_least, at_most=at_most))


def positive(text: str) -> float:
    """Parse an option's number above 0."""
    return _in_range(text, float, Range(above=0))


def _in_range(text: str, kind: type[Number], allowed: Range) -> Number:
    try:
        number: Number | None = kind(text) if len(text) <= 40 else None
    except (ValueError, OverflowError):
        number = None
    if number is None or not allowed.allows(number):
        noun = "a whole number" if kind is int else "a number"
        raise argparse.ArgumentTypeError(f"must be {noun} {allowed.text}, got {shown(text)}")
    return number


class Parser(argparse.ArgumentParser):
    """A parser that raises UsageError, with the nearest spelling of a misspelt choice. It refuses an empty path, which
    Python reads as the current folder, and abbreviated options, such as `--seed` for `--seeds`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def error(self, message: str) -> None:  # type: ignore[override]
        raise UsageError(f"{message}; see `{self.prog} --help`")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as the base class does. Raises UsageError naming the command for arguments that it does not know."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = [name for name in self._option_string_actions if name.startswith("--")]
            hints = [difflib.get_close_matches(word.partition("=")[0], options, n=1, cutoff=0.7) for word in unknown]
            near = next((f"; did you mean {hint[0]}?" for hint in hints if hint), "")
            self.error(f"unrecognized arguments: {shown(' '.join(unknown))}{near}")
        return parsed, unknown

    def _get_value(self, action: argparse.Action, arg_string: str) -> object:
        if not arg_string and (action.type is Path or action.metavar in PATH_METAVARS):
            raise argparse.ArgumentError(action, "is empty; name a file or a folder")
        return super()._get_value(action, arg_string)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            allowed = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(action, f"no {shown(value)}; {nearest(str(value), allowed)}")


def add_word(
    commands: Any, name: str, about: str, act: Callable[[argparse.Namespace], int | None], *, more: str = ""
) -> Parser:
    """Add a command or subcommand; returns its parser. act: returns the exit code, None for 0. more: sentences that its
    own help adds to `about`."""
    parser = _add_described(commands, name, about, more)
    parser.set_defaults(act=act)
    return parser


def add_words(commands: Any, name: str, about: str) -> Any:
    """Add a command with subcommands; returns the action to add them to."""
    return _add_described(commands, name, about).add_subparsers(title="commands", metavar="<command>", required=True)


def _add_described(commands: Any, name: str, about: str, more: str = "") -> Parser:
    parser: Parser = commands.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}. {more}")
    return parser


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """Add --config and --overrides."""
    parser.add_argument(
        "--config", metavar="FILE", help="YAML file; missing keys keep their defaults (default: all defaults)"
    )
    add_overrides(parser, "configuration values that win over file and flags, such as training.lr=1e-5")
    parser.set_defaults(takes_config=True)


def add_overrides(parser: argparse.ArgumentParser, about: str) -> None:
    """Add --overrides."""
    add_list(parser, "--overrides", "KEY=VALUE", f"{about} (default: none)")


def add_list(parser: argparse._ActionsContainer, option: str, metavar: str, about: str) -> None:
    """Add an option that takes several values, and may be repeated (default: none)."""
    parser.add_argument(option, nargs="+", action="extend", default=[], metavar=metavar, help=about)


def imports_nothing(arguments: argparse.Namespace) -> bool:
    """True if a parsed command line must not import code that a file names (`r2v.extensions.importing_nothing`): one
    with --dry-run, or of a command whose parser has no default `runs_code=True`."""
    dry = any(getattr(arguments, name, False) for name in ("dry_run", "--dry-run"))
    return dry or not getattr(arguments, "runs_code", False) or not getattr(arguments, "trust", True)


def add_allow_env(parser: argparse.ArgumentParser) -> None:
    """Add --allow-env to the parser of `r2v`, for the commands that send a key which a configuration names: those whose
    parser has the default `sends_keys=True` (`take_allowed`)."""
    parser.add_argument(
        OPTION,
        dest="allow_env",
        action="append",
        metavar="NAME",
        help="for commands that send keys, before or after their name: allow the configuration to send this "
        "environment variable as a key (api_key_env) although it is no provider's and its name does not end in "
        "_API_KEY; repeatable (default: none)",
    )


def take_allowed(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Take --allow-env (up to `--`) out of a command line: the other words, and the variables. Raise UsageError."""
    end = words.index("--") if "--" in words else len(words)
    others, allowed, at = list[str](), list[str](), 0
    while at < end:
        option, equals, value = words[at].partition("=")
        if option != OPTION:
            others.append(words[at])
            at += 1
            continue
        if not equals:
            at += 1
            value = words[at] if at < end else ""
        if not re.fullmatch(VARIABLE_NAME, value):
            raise UsageError(f"{OPTION} must be the name of an environment variable, never the key itself")
        allowed.append(value)
        at += 1
    return [*others, *words[end:]], allowed


def add_force(parser: argparse.ArgumentParser) -> None:
    """Add --force."""
    parser.add_argument("--force", action="store_true", help="make it again although it is up to date")


def load_config(arguments: argparse.Namespace) -> Config:
    """Return the configuration of the options: file, then flags, then overrides."""
    from r2v.memory.profile_of_model import configured

    return configured(arguments.config, [*_flags(arguments), *arguments.overrides])


def config_words(arguments: argparse.Namespace) -> list[str]:
    """Return options that give any stage command this command line's configuration."""
    if not getattr(arguments, "takes_config", False):
        return []
    words = [] if arguments.config is None else ["--config", str(arguments.config)]
    overrides = [*_flags(arguments), *arguments.overrides]
    return [*words, "--overrides", *overrides] if overrides else words


def _flags(arguments: argparse.Namespace) -> list[str]:
    """Return the flags as `key=value`: a flag's destination is its dotted key."""
    return [f"{key}={_as_yaml(value)}" for key, value in vars(arguments).items() if "." in key and value is not None]


def _as_yaml(value: object) -> str:
    words = [word for item in value for word in str(item).split()] if isinstance(value, list) else str(value)
    return json.dumps(words, ensure_ascii=False)
