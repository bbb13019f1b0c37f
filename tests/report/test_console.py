"""The closing lines of a run: r2v beside every other router, as on the report's page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from r2v.evaluation.setup import Setup
from r2v.evaluation.tables.build import build_tables
from r2v.evaluation.tables.files import render, write_results
from r2v.report.console import closing_lines
from tests.evaluation.conftest import play

TASKS = [f"t{number:02}" for number in range(40)]
PLAYED = {"slm_only": (10, 0, 0.01), "llm_only": (38, 10, 0.11), "entropy_router": (30, 3, 0.03), "r2v": (24, 3, 0.03)}
"""Method -> solved of 40 tasks, the LLM's of ten steps, USD an episode."""


def written(results: Path, methods: tuple[str, ...], *, budgets: bool = True) -> str:
    """Return the closing lines of an evaluation of these methods."""
    routers = [name for name in methods if name in ("entropy_router", "r2v")] if budgets else []
    setup = Setup(
        benchmark="desk",
        methods=methods,
        seeds=(1,),
        tasks={"noisy": TASKS},
        frontier={"noisy": {name: ["b0.50"] for name in routers}},
        resamples=500,
    )
    episodes = [
        play(name, task, 1, at < solved, point=point, escalated=escalated, total_cost=usd)
        for name, (solved, escalated, usd) in PLAYED.items()
        if name in methods
        for point in (None, *(["b0.50"] if name in routers else ()))
        for at, task in enumerate(TASKS)
    ]
    write_results(results / "structured_results", render(build_tables(episodes, setup).bundle()))
    return closing_lines(results, [("tables", results / "structured_results")], None)


def test_each_router_stands_beside_r2v_with_a_verdict_in_both_directions(tmp_path: Path) -> None:
    """entropy_router solves six tasks of forty more for the same dollars."""
    head, _, ends, titles, entropy, *_ = written(tmp_path, tuple(PLAYED)).splitlines()
    assert head.startswith("noisy: r2v solves .60, .50 of the way") and head.endswith("behind entropy_router")
    assert ends == (
        "noisy, 40 tasks x one seed: small policy .250 for 10.0 mUSD, LLM .950 for 0.11 USD, r2v .600 for 30.0 mUSD an "
        "episode"
    )
    assert "r2v's .600 leads by" in titles and "APGR" in titles
    cells = re.split(r"  +", entropy.strip())
    assert cells[:2] == ["entropy_router", ".750"] and cells[2].startswith("-.150 [-.") and cells.count("behind") == 2
    assert len(cells) == 9 and all(len(line) <= 120 for line in (ends, titles, entropy))


def test_without_budgets_routers_are_compared_at_one_point_alone(tmp_path: Path) -> None:
    lines = written(tmp_path, tuple(PLAYED), budgets=False).splitlines()
    assert "APGR" not in lines[3] and lines[4].split()[:2] == ["entropy_router", ".750"]


@pytest.mark.parametrize("methods", [("slm_only", "llm_only"), ("slm_only", "llm_only", "entropy_router")])
def test_where_r2v_did_not_play_the_main_table_is_printed(tmp_path: Path, methods: tuple[str, ...]) -> None:
    lines = written(tmp_path, methods).splitlines()
    assert lines[0].split()[:3] == ["method", "cond.", "success"]
    assert [line.split()[0] for line in lines[2 : 2 + len(methods)]] == list(methods)
    assert f"  every row    {tmp_path}/structured_results/results.md" in lines
