"""Ablations are overrides and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from r2v.config import Config, identity, load
from r2v.evaluation.tables.ablation_rows import earnings
from r2v.experiments.ablation_table import ABLATION_ROWS, LEARNED_PARTS


def flat(values: dict[str, Any], stem: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{stem}{key}.") if isinstance(value, dict) else {stem + key: value}
    return found


@pytest.mark.parametrize("name", ABLATION_ROWS)
def test_an_ablation_changes_the_declared_keys_and_no_other(name: str) -> None:
    row = ABLATION_ROWS[name]
    before, after = flat(identity(Config())), flat(identity(load(None, row.overrides)))
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    declared = {override.partition("=")[0] for override in row.overrides}
    assert changed <= declared
    compares = row.base_method != row.ablated_method  # two methods of one pipeline: nothing need change
    assert changed or compares or name == "none"
    assert changed == declared or name == "best_of_4", "best_of_4 names the default K"


def test_the_default_rows_exist() -> None:
    names = Config().ablations.names
    assert set(names) <= set(ABLATION_ROWS)
    assert {"with_verifier", "no_dpo", "no_perturbation"} <= set(names)
    assert any(name.startswith("feat_") for name in names) and any("_k" in n or "best_of" in n for n in names)


def test_every_part_that_has_to_earn_its_place_has_an_ablation() -> None:
    assert {name for name, _ in LEARNED_PARTS.values()} <= set(ABLATION_ROWS)
    assert {part for part in LEARNED_PARTS if part.startswith("feature group")} == {
        f"feature group: {group}" for group in Config().router.features
    }


def test_a_part_earns_its_place_by_its_interval() -> None:
    """Taking it away (-1) or adding it (+1) tells the same; an interval that holds 0 is no."""
    common = {"condition": "noisy", "n_tasks": 40}
    rows = [
        {"name": "no_dpo", "delta": -0.1, "delta_ci": [-0.15, -0.05], **common},
        {"name": "with_verifier", "delta": 0.02, "delta_ci": [-0.01, 0.05], **common},
        {"name": "none", "delta": 0.0, "delta_ci": [0.0, 0.0], **common},
    ]
    found = {row["part"]: row for row in earnings(rows, LEARNED_PARTS)}
    trained, verifier = found["preference training"], found["verifier among the router's features"]
    assert (trained["earns_its_place"], trained["gain"], trained["gain_ci"]) == ("yes", 0.1, [0.05, 0.15])
    assert (verifier["earns_its_place"], verifier["gain"], verifier["gain_ci"]) == ("no", 0.02, [-0.01, 0.05])
    assert len(found) == 2
