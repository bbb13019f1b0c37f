"""Results tables: from episodes to rows to files.

    write_results_folder(results)                          # episodes/, setup.json -> structured_results/
    render(build_tables(episodes, setup).bundle())         # the same texts from anywhere

Everything written is a pure function of the episodes and the setup, so `verify` can build it again and
compare bytes. The figures are computed here; how a file looks is the business of `r2v.evaluation.tables.files`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r2v.data.episode import Episode
from r2v.errors import InputError
from r2v.evaluation.claims import Claim, caveats, claims
from r2v.evaluation.measures.comparisons import comparison_rows, leaders
from r2v.evaluation.measures.outcomes import measure
from r2v.evaluation.measures.table_rows import (
    TableRow,
    category_rows,
    choice_rows,
    frontier_rows,
    seed_rows,
    summary_row,
)
from r2v.evaluation.setup import SETUP, Setup, read_setup, stored_episodes
from r2v.evaluation.tables.files import BUNDLE_SCHEMA, render, round_figures, write_results

STRUCTURED = "structured_results"

_COMMANDS = ("r2v run --config <this folder>/config.yaml", "r2v verify-results <this folder>")
"""Commands that make these results again and that replay them."""


def require_results(folder: Path) -> None:
    """Raise InputError for a folder that is missing or is no evaluation's."""
    if folder.is_symlink() and not folder.exists():
        raise InputError(
            f"{folder}: a link to {folder.readlink()}, which is not there; copy results by `cp -aL`, which copies the "
            "folders that links lead to"
        )
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder of results; name one that `r2v evaluate` made")
    if not any((folder / name).exists() for name in (SETUP, STRUCTURED)):
        raise InputError(
            f"{folder}: not a results folder (no {SETUP}, no {STRUCTURED}); name one that `r2v evaluate` made, such as "
            "results/mrp"
        )


@dataclass(frozen=True, kw_only=True)
class Tables:
    """Every row of every table, numbers already rounded as printed."""

    setup: Setup
    main_table: list[TableRow]
    per_seed: list[TableRow]
    per_category: list[TableRow]
    comparisons: list[TableRow]
    frontier: list[TableRow]
    choices: list[TableRow]
    claims: list[Claim]
    caveats: list[dict[str, Any]]

    @property
    def n_episodes(self) -> int:
        """Number of episodes that these figures rest on: every cell of the grid, as `measure` has made sure."""
        return self.setup.num_episodes

    def bundle(self) -> dict[str, Any]:
        """The content of eval_bundle.json."""
        setup = self.setup
        return {
            "schema_version": BUNDLE_SCHEMA,
            "setup": {
                "benchmark": setup.benchmark,
                "benchmark_version": setup.benchmark_version,
                "conditions": list(setup.conditions),
                "methods": list(setup.methods),
                "n_tasks": {condition: len(tasks) for condition, tasks in setup.tasks.items()},
                **({"limits": setup.limits} if setup.limits else {}),
                **({"never_branched": len(setup.never_branched)} if setup.never_branched else {}),
                "n_seeds": len(setup.seeds),
                "models": setup.models,
                "prices": setup.prices,
                "cost_ratio": setup.cost_ratio,
                "resamples": setup.resamples,
                "level": setup.level,
                "cvar_alpha": setup.cvar_alpha,
                "config_sha256": setup.config_sha256,
            },
            **{
                name: getattr(self, name)
                for name in ("main_table", "per_seed", "per_category", "comparisons", "frontier", "claims", "caveats")
            },
            **({"choices": self.choices} if self.choices else {}),
            "reproduction": {"commands": list(_COMMANDS), "git_commit": setup.git_commit, "seeds": list(setup.seeds)},
        }


def build_tables(episodes: Iterable[Episode], setup: Setup) -> Tables:
    """Every figure of an evaluation. Episodes are read once, in any order, and not kept.

    Raises InputError where the grid of the setup has a cell missing or an episode is not of it.
    """
    measured = measure(episodes, setup)
    cells = [(condition, method) for condition in setup.conditions for method in setup.methods]
    leading = {condition: leaders(measured, condition) for condition in setup.conditions}
    main = [{**summary_row(measured, *cell), "leading": cell[1] in leading[cell[0]]} for cell in cells]
    main, compared = round_figures(main), round_figures(comparison_rows(measured))
    return Tables(
        setup=setup,
        main_table=main,
        per_seed=round_figures([row for cell in cells for row in seed_rows(measured, *cell)]),
        per_category=round_figures([row for cell in cells for row in category_rows(measured, *cell)]),
        comparisons=compared,
        frontier=round_figures([row for condition in setup.frontier for row in frontier_rows(measured, condition)]),
        choices=round_figures(list(choice_rows(setup))),
        claims=claims(main, compared),
        caveats=caveats(main, compared, setup.router_scores, setup.limits, len(setup.never_branched)),
    )


def write_results_folder(results: Path) -> Tables:
    """Build and write `results/structured_results/` from the episodes and the setup."""
    setup = read_setup(results)
    tables = build_tables(stored_episodes(results, setup), setup)
    write_results(results / STRUCTURED, render(tables.bundle()))
    return tables
