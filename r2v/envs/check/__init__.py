"""Contract check of a benchmark: all that is wrong with it, in sentences.

    findings = check_benchmark(Shop())      # findings.faults == [] where it keeps the contract

A fault breaks something in a stage; a note says what was not looked at, or what a user may not expect. The benchmark's
code is run: that is the point.
"""

from __future__ import annotations

from typing import Any

from r2v.envs.check.declared import check_declared
from r2v.envs.check.findings import CheckFindings as CheckFindings
from r2v.envs.check.played import check_played
from r2v.envs.check.players import check_players


def check_benchmark(benchmark: Any, *, num_tasks: int = 3, seed: int = 0, max_steps: int = 30) -> CheckFindings:
    """What is wrong with a benchmark, by what it declares and by playing `num_tasks` of its tasks."""
    findings = CheckFindings()
    tasks = check_declared(benchmark, findings)
    if tasks:
        tasks = tasks[:num_tasks]
        experts = check_played(benchmark, tasks, findings, seed=seed, max_steps=max_steps)
        check_players(benchmark, tasks, experts, findings, seed=seed, steps=max_steps)
    return findings
