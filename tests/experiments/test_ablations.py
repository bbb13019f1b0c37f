"""Ablations are overrides and nothing else, of settings that the compared method depends on, and share their
environments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from r2v.config import Config, identity, load
from r2v.config.methods import ALL_ROWS, Ablation, registry
from r2v.envs.base import load_benchmark
from r2v.errors import UsageError
from r2v.evaluation.settings import EvaluateSettings
from r2v.evaluation.tables.ablation_rows import earnings
from r2v.experiments.ablations import AblationsSettings, _chains, deciding_changes, deciding_jobs, left_out, rows_of
from r2v.perturb.schedule import make_schedule


def flat(values: dict[str, Any], stem: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{stem}{key}.") if isinstance(value, dict) else {stem + key: value}
    return found


@pytest.mark.parametrize("name", registry().rows)
def test_an_ablation_changes_the_declared_keys_and_no_other(name: str) -> None:
    row = registry().rows[name]
    before, after = (flat(identity(load(None, keys))) for keys in (row.shared, (*row.shared, *row.overrides)))
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    declared = {override.partition("=")[0] for override in row.overrides}
    assert changed <= declared
    compares = row.base_method != row.ablated_method  # two methods of one pipeline: nothing need change
    assert changed or compares or name == "none"
    assert changed == declared or name == "best_of_4", "best_of_4 names the default K"


def test_the_default_rows_exist() -> None:
    names = Config().ablations.names
    assert set(names) <= set(registry().rows)
    assert {"with_verifier", "no_dpo", "no_perturbation"} <= set(names)
    assert any(name.startswith("feat_") for name in names) and any("_k" in n or "best_of" in n for n in names)


BENCHMARK = load_benchmark("desk", {})


def worlds(chain: Config) -> list[Any]:
    """Return everything that an evaluation's episodes depend on besides the player: tasks, seeds, hazards, limits."""
    cfg = EvaluateSettings.of(chain)
    (condition,) = cfg.evaluation.conditions
    specs = cfg.specs(BENCHMARK, condition)
    hazards = [make_schedule(BENCHMARK, cfg.perturbations, s.condition, s.perturbation_seed or 0) for s in specs]
    return [identity(cfg.env), specs, hazards, cfg.inference.max_steps, cfg.inference.max_llm_calls]


def sides(row: Ablation) -> tuple[Config, Config]:
    base, ablated = _chains(load(None, ["evaluation.num_tasks=3"]), [row]).values()
    return base, ablated


@pytest.mark.parametrize("name", registry().rows)
def test_both_sides_of_a_row_play_the_same_worlds(name: str) -> None:
    base, ablated = sides(registry().rows[name])
    assert worlds(base) == worlds(ablated)


@pytest.mark.parametrize("name", ["nothing_held_out", "held_out_family"])
def test_what_is_held_out_is_judged_where_it_occurs(name: str) -> None:
    """Under noisy the two environments would differ by the setting that the row removes from training."""
    row = registry().rows[name]
    assert row.condition == "shift"
    base, ablated = sides(replace(row, condition="noisy"))
    assert worlds(base) != worlds(ablated)


def test_no_row_rests_on_whether_what_was_trained_is_accepted() -> None:
    for row in registry().rows.values():
        if row.overrides[:1] and row.overrides[0].startswith(("preference.", "candidates.")):
            told = [key for side in sides(row) for key in [side.preference.accept]]
            assert told == ["always", "always"] or row.name in ("no_dpo", "dpo_unseen")


def test_a_row_is_there_only_where_the_compared_method_depends_on_what_it_changes() -> None:
    """r2v uses no verifier, nor do its pairs or its router by default; verifier_router does."""
    config = Config()
    assert "verifier" not in deciding_jobs(config, "r2v")
    assert "verifier" in deciding_jobs(load(None, ["preference.pair_mode=consensus"]), "r2v")
    assert "verifier" in deciding_jobs(load(None, ["router.features=[verifier]"]), "r2v")
    assert {"verifier", "router", "candidates"} <= deciding_jobs(config, "verifier_router")
    assert deciding_jobs(config, "slm_bc_only") == {"collect", "perturb", "bc"}
    assert deciding_jobs(load(None, ["preference.enabled=false"]), "slm_only") == {
        "collect",
        "perturb",
        "bc",
        "preference",
    }
    row = registry().rows["verifier_by_outcome"]
    assert left_out(config, row) is None
    blind = replace(row, base_method="r2v", ablated_method="r2v")
    assert "nothing that decides what r2v does" in str(left_out(config, blind))


@pytest.mark.parametrize("name", registry().rows)
def test_every_row_of_one_method_changes_a_stage_that_it_depends_on(name: str) -> None:
    row = registry().rows[name]
    if row.overrides and row.base_method == row.ablated_method and name != "verifier_by_execution":
        assert deciding_changes(*sides(row), row.ablated_method)


def test_all_are_the_rows_that_a_configuration_can_tell_of_in_the_order_of_the_table() -> None:
    """The bundled teacher cannot judge; labels that `auto` chooses with a teacher are the same labels."""
    named = {"scripted": {"consensus", "judge", "execution"}, "openai": {"outcome"}}
    for provider, sources in named.items():
        config = load(None, ["ablations.names=[all]", f"teacher.provider={provider}"])
        missing = {f"verifier_by_{source}" for source in sources}
        assert AblationsSettings.of(config).rows == [name for name in registry().rows if name not in missing]
    assert load("configs/desk/full.yaml").ablations.names == [ALL_ROWS]


def test_rows_that_say_nothing_are_left_out_and_rows_that_cannot_be_made_refused() -> None:
    same = ["ablations.names=[no_rounds,no_dpo]", "router.rounds=0"]
    assert [row.name for row in rows_of(load(None, same))] == ["no_dpo"]
    with pytest.raises(UsageError, match=r"no row is left \(no_rounds: nothing that decides"):
        rows_of(load(None, ["ablations.names=[no_rounds]", "router.rounds=0"]))
    with pytest.raises(UsageError, match="ablation verifier_by_judge: verifier.mode=llm_judge: a judge needs an LLM"):
        rows_of(load(None, ["ablations.names=[verifier_by_judge]"]))
    with pytest.raises(UsageError, match="ablations.names holds all alone"):
        load(None, ["ablations.names=[all,none]"])


def test_routed_rows_play_a_frontier_where_the_study_has_one() -> None:
    config = load(None, ["ablations.budgets=[0.1,0.3]", "ablations.names=[no_rounds,best_of_4]"])
    chains = _chains(config, rows_of(config))
    played = {name: (chain.evaluation.methods, chain.evaluation.budgets) for name, chain in chains.items()}
    assert played == {
        "base noisy": (["llm_only", "r2v", "slm_only"], [0.1, 0.3]),
        "no_rounds": (["llm_only", "r2v", "slm_only"], [0.1, 0.3]),
        "best_of_4": (["best_of_k"], []),
    }


def test_every_part_that_has_to_earn_its_place_has_an_ablation() -> None:
    assert {name for name, _ in registry().learned_parts.values()} <= set(registry().rows)
    assert {part for part in registry().learned_parts if part.startswith("feature group")} == {
        f"feature group: {group}" for group in Config().router.features
    }


def test_a_part_earns_its_place_by_its_interval() -> None:
    """Taking it away (-1) and adding it (+1) count alike; with an interval that contains 0 the answer is no."""
    common = {"condition": "noisy", "n_tasks": 40}
    rows = [
        {"name": "no_dpo", "delta": -0.1, "delta_ci": [-0.15, -0.05], **common},
        {"name": "with_verifier", "delta": 0.02, "delta_ci": [-0.01, 0.05], **common},
        {"name": "none", "delta": 0.0, "delta_ci": [0.0, 0.0], **common},
    ]
    found = {row["part"]: row for row in earnings(rows, registry().learned_parts)}
    trained, verifier = found["preference training"], found["verifier among the router's features"]
    assert (trained["earns_its_place"], trained["gain"], trained["gain_ci"]) == ("yes", 0.1, [0.05, 0.15])
    assert (verifier["earns_its_place"], verifier["gain"], verifier["gain_ci"]) == ("no", 0.02, [-0.01, 0.05])
    assert len(found) == 2
