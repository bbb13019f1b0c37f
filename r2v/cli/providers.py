"""`r2v providers emulate`: rehearse a run against both APIs, free of charge.

    r2v providers emulate --port 8765 --faults commit_then_500@1 line_500:0.05 --ledger ledger.jsonl

prints the two base URLs and the variables to export, and serves until it is interrupted. With `--folder` the same
command resumes the last state, even after a kill: batches, files, ledger, and the count of each fault.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from r2v.cli import journals
from r2v.cli.options import add_list, add_word, add_words, whole
from r2v.constraints import LARGEST_SEED, Range, require
from r2v.errors import UsageError, nearest

if TYPE_CHECKING:
    from r2v.emulator.ledger import Statement

T = TypeVar("T")


def add_commands(commands: Any) -> None:
    """Add `providers`."""
    about = "payments to providers and open requests; a rehearsal against emulated providers"
    subcommands = add_words(commands, "providers", about)
    journals.add_commands(subcommands)
    about = "serve the OpenAI and Anthropic APIs on this machine, with faults on request"
    parser = add_word(subcommands, "emulate", about, act)
    parser.set_defaults(runs_code=True)  # of --answer
    parser.add_argument(
        "--port",
        type=whole(0, 65_535),
        default=8765,
        metavar="PORT",
        help="loopback port; 0 takes a free one (default: 8765)",
    )
    parser.add_argument(
        "--answer",
        nargs="+",
        default=["echo"],
        metavar="NAME",
        help="source of the models' replies: echo, desk, swebench, judge, game, game_judge, or a path "
        "package.module:function, which takes `request` and returns a text or None: `request.messages` are those of "
        "any API, `request.body` is its JSON (with `input` for Responses); several are tried in order until one "
        "answers (default: echo)",
    )
    about = "additional models to serve, which their provider does not list or no longer lists (default: none)"
    add_list(parser, "--models", "MODEL", about)
    about = "lower a limit, such as openai.requests=100 or calls_per_minute=60 (default: none)"
    add_list(parser, "--limits", "KEY=VALUE", about)
    about = "faults to inject; `--faults list` prints the table (default: none)"
    add_list(parser, "--faults", "NAME[/ON][@N|:P]", about)
    parser.add_argument(
        "--seed", type=whole(0, LARGEST_SEED), default=0, metavar="N", help="seed of the faults' draws (default: 0)"
    )
    about = (
        "polls=N or seconds=S: polls or seconds until a batch ends; and durations of faults in seconds, such as "
        "silence=5 (default: polls=3, and see the table of faults)"
    )
    add_list(parser, "--timing", "KEY=VALUE", about)
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="folder that keeps state between starts (default: a temporary folder)",
    )
    parser.add_argument("--ledger", type=Path, metavar="FILE", help="billing ledger (default: in the folder)")


def act(arguments: argparse.Namespace) -> None:
    """Serve until interrupted. Raises UsageError, LeaseConflict, EnvironmentFault."""
    from r2v.emulator import faults, limits
    from r2v.emulator.emulator import Emulator

    if arguments.faults == ["list"]:
        return print(faults.__doc__)
    ends = [text for text in arguments.timing if text.startswith(("polls=", "seconds="))]
    emulator = Emulator(
        answer=arguments.answer,
        faults=[faults.Fault.parse(text) for text in arguments.faults],
        seed=arguments.seed,
        folder=arguments.folder,
        ledger=arguments.ledger,
        port=arguments.port,
        limits=changed(limits.EmulatedLimits(), arguments.limits, "--limits"),
        timing=changed(limits.Timing(), [text for text in arguments.timing if text not in ends], "--timing"),
        lifecycle=changed(limits.Lifecycle(polls=3), ends, "--timing"),
        models=arguments.models,
    )
    with emulator:
        openai_url, anthropic_url = emulator.openai_url, emulator.anthropic_url
        print(
            f"OpenAI     {openai_url}\nAnthropic  {anthropic_url}\nledger     {emulator.ledger_path}\n\n"
            f"  export OPENAI_BASE_URL={openai_url} OPENAI_API_KEY=emulated\n"
            f"  export ANTHROPIC_BASE_URL={anthropic_url} ANTHROPIC_API_KEY=emulated\n",
            flush=True,
        )
        with suppress(KeyboardInterrupt):
            threading.Event().wait()
        print(bill_line(emulator.ledger()), flush=True)


def bill_line(statement: Statement) -> str:
    """Return the total of a ledger in one line."""
    modes = [bill.mode for bill in statement.bills]
    fired = sum(map(len, statement.fired.values()))
    return (
        f"billed {len(modes)} requests ({modes.count('batch')} in batches, {modes.count('sync')} at once), "
        f"{sum(bill.tokens_in for bill in statement.bills)} tokens in, "
        f"{sum(bill.tokens_out for bill in statement.bills)} out; {fired} faults fired"
    )


def changed(settings: T, texts: Sequence[str], option: str) -> T:
    """Return a settings object with values changed by KEY=VALUE texts; KEY may be dotted. Raises UsageError."""
    for text in texts:
        key, _, value = text.partition("=")
        settings = _with(settings, key.split("."), value, f"{option} {text}")
    return settings


def _with(settings: Any, keys: list[str], value: str, source: str) -> Any:
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    if keys[0] not in values:
        raise UsageError(f"{source}: no {keys[0]}; {nearest(keys[0], values)}")
    inner = values[keys[0]]
    if is_dataclass(inner):
        if len(keys) == 1:
            raise UsageError(f"{source}: names a group; allowed: {keys[0]}.<key>=<number>")
        return replace(settings, **{keys[0]: _with(inner, keys[1:], value, source)})
    try:
        number = float(value) if isinstance(inner, float) else int(value)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{source}: not a number") from error
    # Seconds may be negative: a server's clock can be behind.
    require(source, Range() if isinstance(inner, float) else Range(at_least=0), number)
    return replace(settings, **{keys[0]: number})
