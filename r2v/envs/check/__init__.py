"""Contract check of a benchmark: its violations as sentences.

    findings = check_benchmark(Shop())      # findings.faults == [] if it keeps the contract

A fault breaks a stage; a note names a check that was skipped or a surprise for users. The check runs the benchmark's
code.
"""

from __future__ import annotations

from typing import Any

from r2v.envs.check.declared import check_declared
from r2v.envs.check.findings import CheckFindings as CheckFindings
from r2v.envs.check.played import check_played
from r2v.envs.check.players import check_players


def check_benchmark(benchmark: Any, *, num_tasks: int = 3, seed: int = 0, max_steps: int = 30) -> CheckFindings:
    """Return the findings on a benchmark's declarations and on episodes of its first `num_tasks` tasks."""
    findings = CheckFindings()
    tasks = check_declared(benchmark, findings)
    if tasks:
        tasks = tasks[:num_tasks]
        experts = check_played(benchmark, tasks, findings, seed=seed, max_steps=max_steps)
        check_players(benchmark, tasks, experts, findings, seed=seed, steps=max_steps)
    return findings
