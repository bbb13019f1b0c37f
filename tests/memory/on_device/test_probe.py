"""The figures of a probe, its file, and plans made with it. No GPU is needed: tensors without data are measured."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from r2v.cli.cluster.plan import add_commands
from r2v.config import CriticConfig, HierarchicalConfig, PolicyConfig
from r2v.errors import InputError, UsageError
from r2v.hrl.parallel.micro_batch import planned as plan_of_training
from r2v.memory.measured.rehearsal import FixedShape, rehearse
from r2v.memory.measurement import MeasuredCase
from r2v.memory.models import known_model
from r2v.memory.on_device.calibration import Calibration, read, save, select
from r2v.memory.on_device.probe import expected, factors_of, probe
from r2v.memory.planner.planner import Plan, plan
from r2v.memory.planner.training_job import Machine, TrainingJob
from r2v.memory.sizes import GIB
from tests.memory.measuring import READER, SMALL, lookup, measure, model

HRL, BC = "r2v.hrl.training.rehearsal:memory", "r2v.policy.rehearsal:bc"
WORK = TrainingJob(
    stage="hierarchical", code=HRL, model=known_model("Llama-3.2-3B"), critic=known_model("roberta-base")
)
A100 = Calibration(
    model="Llama-3.2-3B", parameters=3_212_749_824, gpu="NVIDIA A100-SXM4-80GB", torch="2.13.0", factors={}
)
LITTLE = TrainingJob(
    stage="hierarchical",
    code=HRL,
    model=model(SMALL),
    critic=model(READER),
    value=True,
    lora_rank=4,
    precision="float32",
    prompt_tokens=60,
    completion_tokens=12,
    critic_tokens=48,
    episodes=3,
    batch=6,
)


def rows_of(found: Plan, phase: str) -> int:
    """Return the micro-batch of a phase."""
    return found.phase(phase)[1].micro_batch


def wider(factor: float) -> Callable[[MeasuredCase, FixedShape], int]:
    """Return the measurement of a GPU whose kernels take so many times the expected bytes."""

    def measured(case: MeasuredCase, shape: FixedShape) -> int:
        static, activation = expected(lookup(case), shape)
        return round(static + factor * activation)

    return measured


def test_the_judge_finds_nothing_to_correct() -> None:
    """Every phase is rehearsed as it was planned."""
    found = plan(LITTLE, Machine(memory=GIB * 8), lookup)
    factors = factors_of(list(probe(found, lambda case, shape: rehearse(case, shape).peak)))
    assert factors.keys() == {one.phase.name for one in found.phases}
    assert all(0.95 < factor < 1.05 for factor in factors.values()), factors


def test_a_factor_makes_the_plan_say_what_was_measured() -> None:
    """Permanent figures do not change."""
    found = plan(WORK, Machine(memory=44.53 * GIB), lookup)
    probed = {one.phase: one for one in probe(found, wider(1.25))}
    assert probed["actor"].micro_batch == rows_of(found, "actor")
    factors = factors_of(list(probed.values()))
    assert factors == {
        name: pytest.approx(1.25)
        for name in ("rollout, actor", "rollout, guidance", "reference", "critic", "actor", "guidance")
    }
    again = plan(WORK, replace(found.machine, factors=factors), lookup)
    assert rows_of(again, "actor") < rows_of(found, "actor")


def test_what_does_not_fit_is_tried_with_fewer_rows(caplog: pytest.LogCaptureFixture) -> None:
    found = plan(WORK, Machine(memory=141 * GIB), lookup)
    seen = list[tuple[str, int]]()

    def measured(case: MeasuredCase, shape: FixedShape) -> int:
        seen.append((case.role, shape.rows))
        if shape.rows > 5 or case.role == "critic":
            raise torch.OutOfMemoryError
        return wider(1.1)(case, shape)

    probed = {one.phase: one for one in probe(found, measured)}
    assert "critic" not in probed and "micro-batch of 1 does not fit: phase=critic" in caplog.text
    assert ("critic", 1) in seen
    for one in probed.values():
        assert one.factor == pytest.approx(1.1) and 2 < one.micro_batch <= 5


def test_what_takes_less_than_its_weights_is_told_and_left(caplog: pytest.LogCaptureFixture) -> None:
    found = plan(WORK, Machine(memory=44.53 * GIB), lookup)
    assert list(probe(found, lambda case, shape: 1 if case.action == "train" else wider(1.0)(case, shape)))
    assert "phase not calibrated" in caplog.text and "phase=actor measured_gib=0.00" in caplog.text


@pytest.mark.parametrize(
    ("change", "shards", "said"),
    [
        ({"four_bit": True}, "none", "in 4 bits"),
        ({"stage": "bc", "code": BC, "critic": None, "optimizer": "adamw_8bit"}, "none", "with adamw_8bit"),
        ({"lora_rank": 0}, "zero3", "with shards zero3"),
    ],
)
def test_what_one_gpu_cannot_rehearse_is_refused(change: dict[str, Any], shards: Any, said: str) -> None:
    found = plan(WORK, Machine(memory=141 * GIB), lookup)
    strategy = replace(found.strategy, shards=shards)
    with pytest.raises(UsageError, match=f"--probe: cannot measure a plan {said}; set"):
        next(probe(replace(found, job=replace(WORK, **change), strategy=strategy), wider(1.0)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_a_probe_is_refused_and_no_file_written(tmp_path: Path) -> None:
    for more in ([], ["--gpu", "80GiB"]):
        with pytest.raises(UsageError, match="torch sees none here; run it in a job") as refused:
            typed("--model", "meta-llama/Llama-3.2-3B", "--probe", str(tmp_path / "file.json"), *more)
        assert "\n" not in str(refused.value) and not list(tmp_path.iterdir())


def test_training_plans_with_the_file(tmp_path: Path) -> None:
    policy = PolicyConfig(model_name="meta-llama/Llama-3.2-3B", lora_r=16, max_seq_len=512)
    h = HierarchicalConfig(
        answer_tokens=512,
        critic=CriticConfig(model_name="FacebookAI/roberta-base"),
        gradient_checkpointing=False,
        calibration=str(tmp_path / "file.json"),
    )
    save(tmp_path / "file.json", replace(A100, torch=torch.__version__, factors={"actor": 1.5}))
    bare, corrected = (
        plan_of_training(policy, one, "shared", 44.53 * GIB, 1, A100.gpu, measure=measure)
        for one in (replace(h, calibration=None), h)
    )
    assert rows_of(corrected, "actor") < rows_of(bare, "actor")
    assert rows_of(corrected, "critic") == rows_of(bare, "critic")
    with pytest.raises(UsageError, match="a GPU named NVIDIA L4, torch .* probe again"):
        plan_of_training(policy, h, "shared", 44.53 * GIB, 1, "NVIDIA L4", measure=measure)


def typed(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add_commands(parser.add_subparsers())
    values = parser.parse_args(["plan", *words])
    return int(values.act(values) or 0)


def test_the_file_keeps_one_of_each_key_and_adds_phases(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    other = replace(A100, gpu="NVIDIA H100 80GB HBM3")
    for key, factors in ((A100, {"actor": 1.1, "critic": 0.9}), (other, {"actor": 1.2}), (A100, {"actor": 1.05})):
        save(path, replace(key, factors=factors))
    one, another = read(path)
    assert one == replace(other, factors={"actor": 1.2})
    assert another == replace(A100, factors={"actor": 1.05, "critic": 0.9})
    assert [one.name for one in tmp_path.iterdir()] == ["calibration.json"]


def test_only_the_same_model_gpu_and_torch_is_chosen() -> None:
    kept = [A100, replace(A100, gpu="NVIDIA H100 80GB HBM3"), replace(A100, model="other", parameters=1)]
    shape = WORK.model
    assert select(kept, shape, "a100", "2.13.0") == A100
    for gpu, version, said in (
        ("", "2.13.0", "name one with --gpu-type"),
        ("h200", "2.13.0", "probe again"),
        ("a100", "2.14.0", "A100-SXM4-80GB with torch 2.13.0, NVIDIA H100"),
    ):
        with pytest.raises(UsageError, match=said):
            select(kept, shape, gpu, version)
    with pytest.raises(UsageError, match="nothing of this model"):
        select(kept, LITTLE.model, "", "2.13.0")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"format": 2, "calibrations": []}',
        '{"format": 1}',
        '{"format": 1, "calibrations": [{"model": "m"}]}',
        '{"format": 1, "calibrations": [{"model": "m", "parameters": 1, "gpu": "g", '
        '"torch": "t", "factors": {"actor": -1}}]}',
    ],
)
def test_a_file_that_is_something_else_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(text)
    with pytest.raises(InputError, match="not one of this version"):
        read(path)
    with pytest.raises(InputError, match="no such file"):
        read(tmp_path / "none.json")


def test_r2v_plan_takes_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, rows = tmp_path / "calibration.json", []
    save(path, replace(A100, torch=torch.__version__, factors={"actor": 1.5}))
    keys = ("hierarchical.gradient_checkpointing=true", "policy.lora_r=16", "policy.max_seq_len=512")
    words = ("--model", "meta-llama/Llama-3.2-3B", "--gpu", "24", "--stage", "hierarchical", "--overrides", *keys)
    for more in ([], ["--calibration", str(path), "--gpu-type", "a100"]):
        assert typed(*words, "--json", *more) == 0
        rows.append(json.loads(capsys.readouterr().out)["devices"][0]["phases"])
    assert rows[1]["actor"]["micro_batch"] < rows[0]["actor"]["micro_batch"]
    assert rows[1]["reference"] == rows[0]["reference"]
