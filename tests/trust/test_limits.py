"""An evaluation whose oracle, frontier and gains play fewer tasks than its table: it verifies, and states the limit."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from r2v.errors import InputError
from r2v.evaluation.audit.verify import verify_results
from tests import trust, warm
from tests.trust.alter import hard_copy, read_records, write_records
from tests.trust.tampering import make_consistent

LIMITS = ("evaluation.oracle_tasks=2", "evaluation.frontier_tasks=3", "evaluation.gains_tasks=1")
OFF = ("evaluation.oracle_tasks=0", "evaluation.frontier_tasks=0", "evaluation.gains_tasks=0")
WITHOUT = ("evaluation.conditions=[noisy]", "evaluation.methods=[slm_only,llm_only,random_router,oracle_router,r2v]")


def evaluated(project: Path, *overrides: str) -> Path:
    made = warm.run(project, "evaluate", "--config", str(trust.MICRO), "--overrides", *WITHOUT, *overrides)
    assert made.returncode == 0, made.stderr
    return project / "results" / "micro"


def table(results: Path, name: str) -> list[dict[str, str]]:
    with (results / "structured_results" / name).open() as file:
        return list(csv.DictReader(file))


def setup_of(results: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((results / "setup.json").read_text())
    return found


@pytest.fixture(scope="module")
def limited(micro_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = tmp_path_factory.mktemp("limits") / "project"
    hard_copy(micro_run, project)
    return evaluated(project, *LIMITS)


def test_every_cell_says_how_many_tasks_it_rests_on(limited: Path) -> None:
    assert verify_results(limited).num_episodes == 4 * 4 + 2 + 2 * 3
    assert setup_of(limited)["limits"] == {"oracle_router": 2, "frontier": 3, "gains": 1}
    rows = {row["method"]: int(row["n_tasks"]) for row in table(limited, "main_table.csv")}
    assert rows == {"slm_only": 4, "llm_only": 4, "random_router": 4, "oracle_router": 2, "r2v": 4}
    assert {int(row["n_tasks"]) for row in table(limited, "frontier.csv")} == {3}, "both ends on the tasks of the curve"
    compared = {(row["method_b"], row["metric"]): int(row["n_tasks"]) for row in table(limited, "comparisons.csv")}
    assert compared["oracle_router", "success_rate"] == 2 and compared["llm_only", "success_rate"] == 4
    bundle = json.loads((limited / "structured_results" / "eval_bundle.json").read_text())
    texts = " ".join(caveat["text"] for caveat in bundle["caveats"])
    assert "oracle_router rests on fewer tasks" in texts and bundle["setup"]["limits"]["gains"] == 1
    gains = (limited / "gains" / "noisy.jsonl").read_text().splitlines()
    assert len({json.loads(line)["task_id"] for line in gains}) == 1


def test_a_limit_that_was_not_configured_is_found(limited: Path, tmp_path: Path) -> None:
    """Easy tasks first, and the hard ones left out by a limit that config.yaml does not have."""
    copy = tmp_path / "project"
    hard_copy(limited.parents[1], copy)
    results = copy / "results" / "micro"
    setup = setup_of(results)
    setup["limits"]["oracle_router"] = 1
    path = (results / "setup.json").resolve()
    path.unlink()
    path.write_text(json.dumps(setup))
    cell = (results / "episodes/noisy/oracle_router.jsonl.zst").resolve()
    write_records(cell, read_records(cell)[:1])
    make_consistent(results)
    with pytest.raises(InputError, match="setup.json limits"):
        verify_results(results)


def test_switched_off_they_are_played_by_nobody(micro_run: Path, tmp_path: Path) -> None:
    hard_copy(micro_run, tmp_path / "project")
    results = evaluated(tmp_path / "project", *OFF)
    assert verify_results(results).num_episodes == 4 * 4
    assert not (results / "gains").exists() and not (results / "episodes" / "noisy" / "frontier").exists()
    assert {row["method"] for row in table(results, "main_table.csv")} == set(setup_of(results)["methods"])
    assert "oracle_router" not in setup_of(results)["methods"] and "limits" not in setup_of(results)
    assert all(row["ece"] == "" and row["apgr"] == "" for row in table(results, "main_table.csv"))
