"""Measured times: the recorded one, scaled by the ratio of both estimates, of a run on such a machine."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from r2v.config import Config, load, to_yaml
from r2v.pipeline.plan.benchmark_facts import facts_of
from r2v.pipeline.plan.dry_run import planned_work, table
from r2v.pipeline.plan.measured import measured_time
from r2v.pipeline.plan.wall import Allotted
from r2v.storage.durations import Duration, record

CONFIG = load(None, ["training.bc.num_epochs=4", "data.num_episodes=50"])


def ran(root: Path, config: Config = CONFIG, job: str = "bc", **about: object) -> Duration:
    """Record a run of a configuration."""
    told = {"fingerprint": "ab12", "seconds": 100.0, "cpu_seconds": 90.0, "device": "cpu", "cpus": 8, **about}
    run = Duration(job=job, **told)  # type: ignore[arg-type]
    record(root, run)
    folder = root / "outputs" / ".artifacts" / f"{job}-{run.fingerprint}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(to_yaml(config))
    return run


def epochs(config: Config, run: Duration | None = None) -> float:
    """Return a known estimate: a second an epoch."""
    return config.training.phase("bc").num_epochs


def test_a_time_grows_as_its_estimate_does_and_says_what_it_goes_by(tmp_path: Path) -> None:
    run = ran(tmp_path)
    found = measured_time("bc", CONFIG, 6.0, epochs, gpu="cpu", root=tmp_path)
    assert found is not None and (found.seconds, found.run) == (6 + 1.5 * 94, run), "a start is 6 s"
    assert str(found) == "measured in bc-ab12 (100 s on 8 CPUs, times 1.5 for the work planned here)"
    assert "times" not in str(measured_time("bc", CONFIG, 4.0, epochs, gpu="cpu", root=tmp_path))
    for far in (4001.0, 0.003, math.nan):
        assert measured_time("bc", CONFIG, far, epochs, gpu="cpu", root=tmp_path) is None
    assert measured_time("bc", CONFIG, 4.0, lambda made, run: 0.0, gpu="cpu", root=tmp_path) is None


def test_the_run_that_is_nearest_in_size_counts(tmp_path: Path) -> None:
    for count, fingerprint in ((1, "aa"), (4, "bb"), (40, "cc")):
        ran(tmp_path, load(None, [f"training.bc.num_epochs={count}"]), fingerprint=fingerprint)
    found = measured_time("bc", load(None, []), 5.0, epochs, gpu="cpu", root=tmp_path)
    assert found is not None and found.run.fingerprint == "bb"


def test_a_stage_goes_by_no_run_of_an_ablation_and_an_ablation_by_its_own_first(tmp_path: Path) -> None:
    ran(tmp_path, fingerprint="aa", published=False)
    assert measured_time("bc", CONFIG, 4.0, epochs, gpu="cpu", root=tmp_path) is None
    ran(tmp_path, load(None, ["training.bc.num_epochs=8"]), fingerprint="bb")
    for published, fingerprint in ((True, "bb"), (False, "aa")):
        found = measured_time("bc", CONFIG, 8.0, epochs, gpu="cpu", root=tmp_path, published=published)
        assert found is not None and found.run.fingerprint == fingerprint


@pytest.mark.parametrize(
    ("overrides", "device", "gpu"),
    [
        (["env.options.num_tasks=300"], "cpu", "cpu"),
        (["policy.model_name=toy"], "cpu", "cpu"),
        ([], "cpu", ""),
        ([], "cpu", "a100"),
        ([], "NVIDIA A100-SXM4-80GB", "cpu"),
        ([], "NVIDIA A100-SXM4-80GB", "h100"),
    ],
)
def test_another_benchmark_model_or_machine_says_nothing(
    overrides: list[str], device: str, gpu: str, tmp_path: Path
) -> None:
    ran(tmp_path, load(None, overrides), device=device)
    assert measured_time("bc", CONFIG, 4.0, epochs, gpu=gpu, root=tmp_path) is None


def test_a_gpu_is_known_by_its_type_and_here_by_being_here(tmp_path: Path) -> None:
    ran(tmp_path, device="NVIDIA A100-SXM4-80GB")
    for gpu in ("a100", "", None):
        assert measured_time("bc", CONFIG, 4.0, epochs, gpu=gpu, root=tmp_path) is not None


def test_a_dry_run_takes_it_and_says_so(tmp_path: Path) -> None:
    known = facts_of(CONFIG, None)
    ran(tmp_path)
    double = replace(CONFIG, training=replace(CONFIG.training, bc=replace(CONFIG.training.bc, num_epochs=8)))
    bc, evaluate = (planned_work(name, double, known, Allotted(), tmp_path) for name in ("bc", "evaluate"))
    assert bc.wall == bc.seconds.model == pytest.approx(6 + 2 * 94) and evaluate.measured == ()
    lines = table([bc, evaluate], double, known)
    assert "time of bc: measured in bc-ab12 (100 s on 8 CPUs, times 2 for the work planned here)" in lines
    assert any(line.startswith("times of the others: estimated") for line in lines)
    alone = planned_work("bc", double, known, Allotted())
    assert alone.measured == () and alone.wall != bc.wall
    assert any(line.startswith("times: estimated") for line in table([alone], double, known))
    (tmp_path / "outputs" / ".artifacts" / "bc-ab12" / "config.yaml").unlink()
    assert planned_work("bc", double, known, Allotted(), tmp_path).measured == (), "its artifact was cleaned up"


def test_the_shares_of_a_measured_time_add_up_to_it(tmp_path: Path) -> None:
    """And the rows of its parts do."""
    known = facts_of(CONFIG, None)
    ran(tmp_path, job="evaluate", seconds=5000.0)
    estimate = planned_work("evaluate", CONFIG, known, Allotted())
    job = planned_work("evaluate", CONFIG, known, Allotted(), tmp_path)
    assert job.measured and job.wall == pytest.approx(5000.0)
    assert job.seconds.model + job.seconds.environment + job.seconds.llm == pytest.approx(5000.0)
    assert job.seconds.model / job.wall == pytest.approx(estimate.seconds.model / estimate.wall)
    assert sum(part.seconds.wall for part in job.parts) == pytest.approx(5000.0)


def test_an_ablation_study_goes_by_the_runs_of_the_stages_that_it_makes(tmp_path: Path) -> None:
    known = facts_of(CONFIG, None)
    estimate = planned_work("ablations", CONFIG, known, Allotted())
    ran(tmp_path, job="router_features", seconds=3 * planned_work("router_features", CONFIG, known, Allotted()).wall)
    job = planned_work("ablations", CONFIG, known, Allotted(), tmp_path)
    assert [run.run.job for run in job.measured] == ["router_features"]
    for before, after in zip(estimate.parts, job.parts, strict=True):
        factor = 3 if before.part.name.startswith("router_features ") else 1
        assert after.seconds.wall == pytest.approx(factor * before.seconds.wall, rel=0.05), before.part.name


@pytest.mark.parametrize(
    ("job", "device", "allotted", "counts"),
    [
        ("bc", "NVIDIA A100-SXM4-80GB", Allotted(gpus=1, card="a100"), True),
        ("bc", "NVIDIA A100-SXM4-80GB", Allotted(gpus=1), True),
        ("bc", "NVIDIA A100-SXM4-80GB", Allotted(gpus=1, card="h100"), False),
        ("bc", "NVIDIA A100-SXM4-80GB", Allotted(), False),
        ("bc", "cpu", Allotted(gpus=1, card="a100"), False),
        ("collect", "cpu", Allotted(gpus=1, card="a100"), True),
    ],
)
def test_the_card_matters_where_a_model_computes_on_it(
    job: str, device: str, allotted: Allotted, counts: bool, tmp_path: Path
) -> None:
    config = load(None, ["policy.model_name=meta-llama/Llama-3.1-8B-Instruct", "profile=lora-8b"])
    ran(tmp_path, config, job, device=device)
    planned = planned_work(job, config, facts_of(config, None), allotted, tmp_path)
    assert bool(planned.measured) == counts
