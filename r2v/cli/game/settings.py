"""Settings of a Secret Game for `--overrides KEY=VALUE`: rules, prices, and rarely needed keys.

r2v game run --models gpt-5.2 --overrides rules.guess=true max_tokens=[100,300] seed=3
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from r2v.cli.options import add_list
from r2v.constraints import Distinct, Line, NotNegative, OneOf, Positive, Range, Seed, Share, check_fields
from r2v.game.play.rules import Rules

if TYPE_CHECKING:
    from r2v.plotting import FigureFormat

FIGURE_FORMATS: tuple[FigureFormat, ...] = ("pdf", "png", "svg")
_Tokens = Annotated[int, Range(at_least=1, at_most=1_000_000)]
_Temperature = Annotated[float, Range(at_least=0, at_most=2)]
_OpenShare = Annotated[float, Range(above=0, below=1)]


@dataclass(frozen=True, kw_only=True)
class GameSettings:
    """Settings of a game, of its analysis, and of the power of a design."""

    compare: bool = False
    """True: without --model, all usual models of the service's providers play."""
    num_agents: Annotated[int, Range(at_least=1, at_most=10_000)] | None = None
    """Players; None: one per model, but at least 2 in standard mode and 4 in the others."""
    temperature: Annotated[list[_Temperature], Distinct(empty=True)] = field(default_factory=list)
    """Levels of the sampling temperature; a model without one is refused; none: 1."""
    max_tokens: Annotated[list[_Tokens], Distinct(empty=True)] = field(default_factory=list)
    """Levels of the longest message, thoughts not counted; none: 300."""
    effort: Annotated[list[Line], Distinct(empty=True)] = field(default_factory=list)
    """Levels of reasoning effort, in the provider's terms; none: the model's default."""
    rules: Rules = field(default_factory=Rules)
    """Changed rules; the others are the mode's."""
    seed: Seed = 0
    """Seed of the secrets and of every random draw."""
    usd_in: NotNegative | None = None
    """USD per million prompt tokens of a model without a listed price."""
    usd_out: NotNegative | None = None
    """USD per million reply tokens of such a model."""
    poll_seconds: Positive = 5.0
    """Seconds between two polls of a batch, at least."""
    figures: Annotated[list[Annotated[str, OneOf(values=FIGURE_FORMATS)]], Distinct(empty=True)] = field(
        default_factory=lambda: list[str](FIGURE_FORMATS)
    )
    """Formats of the figures; []: none."""
    message_tokens: _Tokens = 60
    """Tokens of a message in the estimate of --dry-run."""
    judge_mode: Literal["batch", "batch_first", "concurrent", "auto"] = "concurrent"
    """Dispatch of the judge's requests in `r2v game analyse`, as --mode of `r2v game run`."""
    rate: _OpenShare = 0.5
    """For `r2v game power`: reveal rate at the first level of each factor."""
    difference: _OpenShare = 0.1
    """True difference of the rates to detect."""
    power: _OpenShare = 0.8
    """Probability of detecting it."""
    level: _OpenShare = 0.95
    """One minus the false positive rate over all contrasts."""
    icc: Share = 0.0
    """Correlation of the conversations of one replicate and level."""


def add_overrides(group: argparse._ActionsContainer, example: str) -> None:
    """Add --overrides."""
    about = f"further settings, such as {example} (`r2v.cli.game.settings` lists them); default: none"
    add_list(group, "--overrides", "KEY=VALUE", about)


def game_settings(overrides: Sequence[str]) -> GameSettings:
    """Return the settings with `key=value` changes. Raise UsageError for an unknown key or an invalid value."""
    from omegaconf import OmegaConf

    from r2v.config import keys
    from r2v.config.sources import override_tree, understood

    merged, own_keys = OmegaConf.structured(GameSettings), tuple(keys(GameSettings))
    for override in overrides:
        source = f"--overrides {override}"
        tree = override_tree(source, override, GameSettings)
        merged = understood(source, lambda: OmegaConf.merge(merged, tree), own_keys)  # noqa: B023
    settings = OmegaConf.to_object(merged)
    assert isinstance(settings, GameSettings)
    check_fields("", settings)
    return settings
