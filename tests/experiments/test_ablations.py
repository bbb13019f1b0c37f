"""Ablations are overrides and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from r2v.config import Config, identity, load
from r2v.experiments.ablations import ABLATION_ROWS


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
    assert changed or name in ("none", "best_of_4"), "best_of_4 names the default K"


def test_the_default_rows_exist() -> None:
    names = Config().ablations.names
    assert set(names) <= set(ABLATION_ROWS)
    assert {"with_verifier", "no_dpo", "no_perturbation"} <= set(names)
    assert any(name.startswith("feat_") for name in names) and any("_k" in n or "best_of" in n for n in names)
