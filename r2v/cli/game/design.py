"""The design of a Secret Game on the command line: factors with their levels, pairings, and `r2v game power`.

r2v game power --models gpt-6-luna --persona none shy=@shy.txt --against self --difference 0.2
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r2v.cli.game.settings import GameSettings, add_overrides
from r2v.cli.options import add_word, whole
from r2v.console import text_table
from r2v.errors import UsageError

if TYPE_CHECKING:
    from r2v.game.play.arms import Factors, Wording
    from r2v.game.play.players import ModelAgent

LONGEST_TEXT = 20_000
"""Maximum bytes of a persona or of instructions."""


def add_played_job(parser: argparse.ArgumentParser) -> None:
    """Add the folder of a played job."""
    parser.add_argument("job", type=Path, metavar="JOB_FOLDER", help="folder of a played job")


def add_factor_options(group: argparse._ArgumentGroup) -> None:
    """Add the factors other than the model; each takes several levels."""
    group.add_argument(
        "--persona",
        dest="personas",
        nargs="+",
        default=[],
        metavar="NAME=TEXT",
        help="beginning of system prompts; NAME=@FILE reads it, `none` is no persona (default: none)",
    )
    group.add_argument(
        "--system-prompt",
        dest="system_prompts",
        nargs="+",
        default=[],
        metavar="NAME=TEXT",
        help="instructions in place of the game's, with {secret} and other fields; NAME=@FILE reads them, `default` is "
        "the game's own (default: default)",
    )
    group.add_argument(
        "--against",
        default="all",
        metavar="WHOM",
        help="opponents of every arm: all others, self (two agents of the same arm), or a model outside the arms "
        "(default: %(default)s)",
    )


def factors_of(models: list[ModelAgent], arguments: argparse.Namespace, settings: GameSettings) -> Factors:
    """Return the factors of the options. Raises UsageError."""
    from r2v.game.play.arms import Factors, check_system_prompt

    prompts = tuple(_wording("--system-prompt", word, "default") for word in arguments.system_prompts)
    for prompt in prompts:
        check_system_prompt(prompt)
    return Factors(
        models=tuple(models),
        temperatures=tuple(settings.temperature),
        max_tokens=tuple(settings.max_tokens),
        efforts=tuple(settings.effort),
        personas=tuple(_wording("--persona", word, "none") for word in arguments.personas),
        system_prompts=prompts,
    )


def _wording(option: str, word: str, plain: str) -> Wording:
    """Parse NAME=TEXT, NAME=@FILE, or the word `plain` for none."""
    from r2v.game.play.arms import Wording

    name, equals, text = word.partition("=")
    if not equals:
        if name == plain:
            return Wording(name=plain)
        raise UsageError(f"{option} {name}: give NAME=TEXT, NAME=@FILE, or {plain}")
    if text.startswith("@"):
        try:
            with Path(text[1:]).open("rb") as file:
                text = file.read(LONGEST_TEXT + 1).decode()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8"
            raise UsageError(f"{option} {name}: {text[1:]} cannot be read: {reason}") from error
    text = text.strip()
    if not name or not text or len(text.encode()) > LONGEST_TEXT:
        raise UsageError(f"{option} {word[:40]}: needs a name and a text of at most {LONGEST_TEXT} bytes")
    return Wording(name=name, text=text)


def add_power(words: Any, add_players: Any, act: Callable[[argparse.Namespace], None]) -> None:
    """Add `power` to the subcommands of `r2v game`."""
    parser = add_word(words, "power", "compute the replicates that a design needs, and its power", act)
    add_players(parser)
    group = parser.add_argument_group("effect and power")
    group.add_argument(
        "--replicates",
        type=whole(2, 1_000_000),
        metavar="N",
        help="compute the power of so many replicates (default: as many as the difference needs)",
    )
    add_overrides(group, "rate=0.3, difference=0.15 or power=0.9")


def power_lines(factors: Factors, arguments: argparse.Namespace, settings: GameSettings) -> list[str]:
    """Return the output of `r2v game power`. Raises UsageError if no factor is varied."""
    from r2v.game.play.arms import arms, num_pairs, pairs_of
    from r2v.game.statistics.power import DesignPower

    varied, num_arms = factors.varied, len(arms(factors))
    if not varied:
        raise UsageError("game power: nothing is varied; give two models, or two levels of another factor")
    if settings.rate + settings.difference > 1 and settings.rate - settings.difference < 0:
        raise UsageError(f"rate={settings.rate:g} difference={settings.difference:g}: leave [0, 1] both ways")
    difference = settings.difference if settings.rate + settings.difference <= 1 else -settings.difference
    contrasts = sum(count - 1 for count in varied.values())
    per_replicate = 2 * num_pairs(num_arms, pairs_of(num_arms, arguments.against))  # every pair meets both ways
    per_arm = (2 if arguments.against in ("all", "self") else 1) * per_replicate // num_arms
    rows = [("factor", "levels", "observations", "replicates", "conversations", "power", "detectable")]
    for factor, count in varied.items():
        design = DesignPower(
            observations=per_arm * num_arms // count,
            contrasts=contrasts,
            rate=settings.rate,
            icc=settings.icc,
            level=settings.level,
        )
        needed = arguments.replicates or design.replicates_for(difference, settings.power)
        if needed is None:
            rows.append((factor, str(count), "-", "too many", "-", "-", "-"))
            continue
        least = design.detectable(needed, settings.power)
        rows.append(
            (
                factor,
                str(count),
                str(needed * design.observations),
                str(needed),
                str(needed * per_replicate),
                f"{design.power(needed, difference):.2f}",
                "-" if least is None else f"{100 * least:.1f} points",
            )
        )
    return [
        f"{num_arms} arms, {contrasts} contrast{'s' * (contrasts > 1)}; a replicate is {per_replicate} conversations "
        f"and gives each arm {per_arm} observations (--against {arguments.against})",
        f"rates {settings.rate:g} and {settings.rate + difference:g}, level {settings.level:g} over all contrasts, "
        f"correlation within a replicate {settings.icc:g}",
        "",
        text_table(rows, right=range(1, len(rows[0]))),
        "",
        "observations: of each level. Play it with `r2v game run` and --replicates; --dry-run prices it.",
    ]
