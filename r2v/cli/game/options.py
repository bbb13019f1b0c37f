"""The command-line options of the AI Secret Game, with the defaults of its scripts."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from r2v.cli.game.design import add_factor_options
from r2v.cli.game.settings import FIGURE_FORMATS, add_overrides
from r2v.cli.options import positive, whole
from r2v.game.play.players import AGENT_TYPES
from r2v.game.play.rules import GameMode
from r2v.storage.paths import GAME_JOBS


@dataclass(frozen=True, kw_only=True)
class GameDefaults:
    """A script's default options."""

    service: str = "default"
    interactions: int = 100
    messages: int = 5
    name: str = "conversation"


def add_run_options(parser: argparse.ArgumentParser, defaults: GameDefaults) -> None:
    """Add all options of `run`, in groups."""
    add_player_options(parser)
    _add_match_options(parser.add_argument_group("the game"), defaults)
    dispatch = parser.add_argument_group("requests and results")
    dispatch.add_argument(
        "--batch-service",
        default=defaults.service,
        metavar="SERVICE",
        help="default, openai, anthropic, conversation, openai-conversation, anthropic-conversation, or auto (the "
        "conversation service of the models' provider); default: %(default)s",
    )
    _add_dispatch_options(dispatch)
    dispatch.add_argument(
        "--results",
        type=Path,
        default=GAME_JOBS,
        metavar="FOLDER",
        help="parent folder of the jobs' folders; default: %(default)s",
    )
    dispatch.add_argument(
        "--dry-run", action="store_true", help="print requests, dollars and hours, and send nothing; default: play"
    )
    add_overrides(dispatch, "rules.guess=true, seed=3 or figures=[png]")


def add_player_options(parser: argparse.ArgumentParser) -> None:
    """Add the models and the other factors of a design."""
    group = parser.add_argument_group("players; factors with several levels are crossed")
    group.add_argument(
        "--agent-type",
        "--model",
        "--models",
        dest="models",
        nargs="+",
        metavar="MODEL",
        help=f"models that play each other: {', '.join(AGENT_TYPES)}, or any listed model, or provider:name for "
        "others; default: one of the service's provider",
    )
    add_factor_options(group)


def _add_match_options(group: argparse._ArgumentGroup, defaults: GameDefaults) -> None:
    group.add_argument(
        "--game-mode",
        default="standard",
        choices=[mode.value for mode in GameMode],
        help="scoring of the game; default: %(default)s",
    )
    group.add_argument(
        "--num-interactions",
        "--interactions",
        dest="interactions",
        type=whole(1, 10_000_000),
        metavar="N",
        help=f"total number of conversations; default: {defaults.interactions}",
    )
    group.add_argument(
        "--replicates",
        type=whole(1, 1_000_000),
        metavar="N",
        help="in place of --num-interactions: sets of secrets, with each of which every pair plays both ways; default: "
        "as many as --num-interactions takes",
    )
    group.add_argument(
        "--messages-per-interaction",
        "--messages",
        dest="messages",
        type=whole(1, 10_000),
        default=defaults.messages,
        metavar="N",
        help="messages of a conversation, both players together; default: %(default)s",
    )


def _add_dispatch_options(group: argparse._ArgumentGroup) -> None:
    """Add the options for sending requests."""
    group.add_argument(
        "--mode",
        choices=["batch", "batch_first", "concurrent", "auto"],
        help="dispatch by provider batches; batches with direct calls if a batch is not worth it or not available; "
        "direct calls; or the cheaper one; default: the service's own",
    )
    group.add_argument(
        "--batch-size",
        type=whole(1, 1_000_000),
        default=10,
        metavar="N",
        help="maximum requests in one wave; default: %(default)s",
    )
    group.add_argument(
        "--max-concurrent",
        type=whole(1, 100_000),
        default=5,
        metavar="N",
        help="maximum batches or direct calls in flight for each model; default: %(default)s",
    )
    _add_cap(group)


def _add_cap(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--max-usd",
        type=positive,
        metavar="USD",
        help="hard cap for the job, all its models together; default: none",
    )


def add_figure_option(group: argparse._ArgumentGroup) -> None:
    """Add --figures."""
    group.add_argument(
        "--figures",
        nargs="+",
        choices=[*FIGURE_FORMATS, "none"],
        default=list(FIGURE_FORMATS),
        metavar="FORMAT",
        help="formats of the figures: pdf, png, svg, or none; default: all three",
    )


def add_judge_options(parser: argparse.ArgumentParser) -> None:
    """Add the judge of `analyse`."""
    group = parser.add_argument_group("a judge")
    group.add_argument(
        "--judge", metavar="MODEL", help="with --labels: this model also judges every conversation; default: none"
    )
    group.add_argument(
        "--labels", type=Path, metavar="FILE", help="labels by people, as `r2v game label` records them; default: none"
    )
    _add_cap(group)
    add_overrides(group, "judge_mode=batch")
