"""Times that were measured: the recorded one, scaled as the estimates of both are, of a run on such a machine."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from r2v.config import Config, load, to_yaml
from r2v.memory.measured import measured_time
from r2v.memory.planner.training_job import Machine
from r2v.memory.stage_table import plan_stages, stages_report
from r2v.pipeline.plan.dry_run import planned_work, table
from r2v.pipeline.plan.known import known_of
from r2v.pipeline.plan.wall import Allotted
from r2v.storage.durations import Duration, record

CONFIG = load(None, ["training.bc.num_epochs=4", "data.num_episodes=50"])


def ran(root: Path, config: Config = CONFIG, job: str = "bc", **about: object) -> Duration:
    """A recorded run of a configuration."""
    told = {"fingerprint": "ab12", "seconds": 100.0, "cpu_seconds": 90.0, "device": "cpu", "cpus": 8, **about}
    run = Duration(job=job, **told)  # type: ignore[arg-type]
    record(root, run)
    folder = root / "outputs" / ".artifacts" / f"{job}-{run.fingerprint}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(to_yaml(config))
    return run


def epochs(config: Config, run: Duration | None = None) -> float:
    """An estimate that is known: a second an epoch."""
    return config.training.phase("bc").num_epochs


def test_a_time_grows_as_its_estimate_does_and_says_what_it_goes_by(tmp_path: Path) -> None:
    run = ran(tmp_path)
    found = measured_time("bc", CONFIG, 6.0, epochs, gpu="cpu", root=tmp_path)
    assert found is not None and (found.seconds, found.run) == (150.0, run)
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
    known = known_of(CONFIG, None)
    ran(tmp_path)
    double = replace(CONFIG, training=replace(CONFIG.training, bc=replace(CONFIG.training.bc, num_epochs=8)))
    jobs = [planned_work(name, double, known, Allotted(), tmp_path) for name in ("bc", "evaluate")]
    assert jobs[0].wall == pytest.approx(200.0) and jobs[1].wall == jobs[1].estimated
    lines = table(jobs, double, known)
    assert "wall of bc: measured in bc-ab12 (100 s on 8 CPUs, times 2 for the work planned here)" in lines
    assert any(line.startswith("wall of the others: estimated") for line in lines)
    alone = planned_work("bc", double, known, Allotted())
    assert alone.measured is None and alone.wall == alone.estimated
    assert any(line.startswith("wall: estimated") for line in table([alone], double, known))
    (tmp_path / "outputs" / ".artifacts" / "bc-ab12" / "config.yaml").unlink()
    assert planned_work("bc", double, known, Allotted(), tmp_path).measured is None, "its artifact was cleaned up"


def test_the_plan_of_all_stages_takes_it_on_such_a_gpu(tmp_path: Path) -> None:
    ran(tmp_path, device="NVIDIA A100-SXM4-80GB", seconds=7200.0)
    machine = Machine(memory=80 * 2**30, kind="a100")
    stages = plan_stages(CONFIG, machine, tmp_path)
    lines = stages_report(CONFIG, machine, stages)
    assert any(line.startswith("bc ") and line.endswith("2 h 00 min, measured") for line in lines)
    assert "time of bc: measured in bc-ab12 (7200 s on NVIDIA A100-SXM4-80GB)" in lines
    assert any(line.startswith("other times are estimates") for line in lines)
    assert all(stage.measured is None for stage in plan_stages(CONFIG, machine))
