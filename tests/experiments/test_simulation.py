"""Routing is replayed over recorded steps: no threshold is better than the executed results allow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from r2v.cli.main import main
from r2v.errors import InputError
from r2v.experiments.metrics import metrics_of
from r2v.experiments.simulation import SimulationFlags, recorded, replayed, simulate
from r2v.router.labels import FeatureRow
from tests import trust


def rows(count: int = 40) -> list[FeatureRow]:
    """Return steps whose entropy marks those where the LLM gains: every fourth."""
    made = []
    for index in range(count):
        hard = index % 4 == 0
        entropy = 2.0 + index / 100 if hard else 0.1 + index / 1000
        made.append(
            FeatureRow(
                state_id=f"t{index}/s1#0",
                episode_id=f"t{index}/s1",
                task_id=f"t{index}",
                split="calibration",
                step_idx=0,
                actor="slm",
                features={f"uncertainty.entropy_{kind}": entropy for kind in ("first", "max", "mean")},
                q_slm=0.0 if hard else 1.0,
                q_llm=1.0,
                slm_episode_success=not hard,
            )
        )
    return made


def test_a_perfect_score_asks_at_the_hard_steps_and_nowhere_else() -> None:
    one = replayed("entropy_router", rows(), {})
    assert (one.rates[0], one.success[0]) == (0.0, 0.75) and (one.rates[-1], one.success[-1]) == (1.0, 1.0)
    at = one.at(0.25)
    assert (one.rates[at], one.success[at]) == (0.25, 1.0)
    assert np.all(np.diff(one.rates) > 0) and one.success[one.at(0.1)] == pytest.approx(0.85)


@pytest.mark.parametrize(
    ("flags", "plots"),
    [
        (SimulationFlags(), {"frontier", "reliability", "confusion"}),
        (SimulationFlags(no_confusion=True), {"frontier", "reliability"}),
        (SimulationFlags(research_only=True, advanced=True), {"frontier", "reliability"}),
        (SimulationFlags(advanced=True), {"frontier", "reliability", "confusion", "thresholds"}),
    ],
)
def test_flags_choose_the_plots(flags: SimulationFlags, plots: set[str]) -> None:
    assert set(flags.figures) == plots


def test_a_simulation_trains_and_plays_nothing(
    micro_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(micro_run)
    before = {path for path in micro_run.rglob("*") if "hash" not in path.name}
    simulate(trust.MICRO, tmp_path / "run", SimulationFlags(advanced=True))
    assert {path for path in micro_run.rglob("*") if "hash" not in path.name} == before
    figures = metrics_of(tmp_path / "run")
    assert 0 <= figures["r2v/success"] <= 1 and figures["r2v/llm_rate"] <= 0.2 + 1e-9
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {f"{name}.png" for name in ("frontier", "reliability", "confusion", "thresholds")} | {
        "metrics.json",
        "outcomes.csv",
    }
    found, routers = recorded_rows()
    assert {row.split for row in found} == {"calibration"} and "r2v" in routers


def recorded_rows() -> tuple[list[FeatureRow], dict[str, object]]:
    from r2v.config import load

    found, routers = recorded(load(trust.MICRO))
    return found, dict(routers)


def test_where_nothing_is_recorded_one_line_says_what_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="needs router_features"):
        simulate(trust.MICRO, tmp_path / "run", SimulationFlags())
    Path("spec.yaml").write_text(
        f"name: s\nmode: simulation\nbase_config: {trust.MICRO}\nsweep: {{router.budget: [0.1]}}\n"
    )
    assert main(["experiments", "run", "--exp", "spec.yaml", "--dry-run"]) == 0
    assert "simulation" in capsys.readouterr().out
