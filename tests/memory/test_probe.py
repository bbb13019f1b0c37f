"""Measured against planned: warnings, records, and the factors that correct a plan. No GPU: the meter is the tests'."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from r2v.errors import InputError, UsageError
from r2v.memory.calibration import Calibration, Key, chosen, keep, read
from r2v.memory.command import add_commands
from r2v.memory.planner import Plan, plan
from r2v.memory.probe import ProcessMeter, Watch, calibrate, expected, meter_of, needs, probe
from r2v.memory.shapes import shape_of
from r2v.memory.sizes import GIB
from r2v.memory.tracker import Tracker
from r2v.memory.work import Machine, Work

WORK = Work(stage="hierarchical", model=shape_of("Llama-3.2-3B"), critic=shape_of("roberta-base"))
A100 = Key(model="Llama-3.2-3B", parameters=3_212_749_824, gpu="NVIDIA A100-SXM4-80GB", torch="2.13.0")


class Told:
    """A meter that says what it is told to."""

    name, counts_tensors = "torch.cuda.max_memory_allocated", True

    def __init__(self, *peaks: float) -> None:
        self.peaks, self.resets = list(peaks), 0

    def reset(self) -> None:
        self.resets += 1

    def peak(self) -> int:
        return int(self.peaks.pop(0))


class Counted:
    """A meter of live tensors, by the tracker."""

    name, counts_tensors = "live tensors", True

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker

    def reset(self) -> None:
        self.span = self.tracker.span("now")
        self.span.__enter__()

    def peak(self) -> int:
        self.span.__exit__(None, None, None)
        return self.tracker.peaks["now"].size


@pytest.fixture(scope="module")
def found() -> Plan:
    return plan(WORK, Machine(memory=44.53 * GIB))


def test_a_drift_of_more_than_a_tenth_is_told_once_a_phase(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch(Told(10.9 * GIB, 11.5 * GIB, 12 * GIB, 8 * GIB))
    for phase in ("actor", "actor", "actor", "critic"):
        with watch.phase(phase, 10 * GIB):
            pass
    assert [one.getMessage() for one in caplog.records] == [
        "  memory: actor took 11.50 GiB, +15 % of the 10.00 GiB planned; a calibration corrects the plan",
        "  memory: critic took 8.00 GiB, -20 % of the 10.00 GiB planned; a calibration corrects the plan"]


def test_the_record_keeps_each_phases_largest_run() -> None:
    watch = Watch(Told(900, 1050, 1000))
    for predicted in (900, 1000, 990):
        with watch.phase("actor", predicted):
            pass
    assert watch.record() == {"actor": {"predicted": 1000, "measured": 1050, "measured_over_predicted": 1.05,
                                        "meter": "torch.cuda.max_memory_allocated"}}
    json.dumps(watch.record(), allow_nan=False)


def test_a_run_that_raises_is_not_counted() -> None:
    watch = Watch(Told(1000))
    with pytest.raises(torch.OutOfMemoryError), watch.phase("actor", 1000):
        raise torch.OutOfMemoryError
    assert watch.record() == {}


def test_live_tensors_of_the_block_alone_are_measured() -> None:
    with Tracker() as tracker:
        watch = Watch(Counted(tracker))
        rest = torch.zeros(256)
        torch.zeros(1 << 16)
        with watch.phase("actor", 5120):
            (rest * 2 + 1).sum()
    assert watch.readings["actor"].measured == 3 * 1024, "what stands there, and two temporaries"


def test_on_a_cpu_the_process_is_measured_and_compared_with_nothing(caplog: pytest.LogCaptureFixture) -> None:
    meter = meter_of("cpu")
    assert isinstance(meter, ProcessMeter)
    watch = Watch(meter)
    size = 512 << 20
    with watch.phase("actor", 1.0):
        held = torch.ones(size // 4)
    del held
    with watch.phase("nothing", 1.0):
        pass
    told = watch.record()
    assert told["actor"]["meter"] == "rise of the process's peak resident memory"
    assert "measured_over_predicted" not in told["actor"] and not caplog.records
    assert told["nothing"]["measured"] < 1 << 20, "no peak above the one before"
    assert told["actor"]["measured"] > size // 4, "it rose, if less than by all where earlier work had its own peak"


def test_shorter_rows_are_expected_to_take_less(found: Plan) -> None:
    """Rows are as long as their texts: drift is of the arithmetic, not of the lengths."""
    for phase in ("actor", "critic", "reference", "rollout, actor"):
        whole = expected(found, phase)
        assert expected(found, phase, tokens=64) < expected(found, phase, tokens=256) < whole
        assert expected(found, phase, rows=1) < whole
    of = {one.phase.name: one.need.total for one in found.phases}
    assert expected(found, "actor") == of["actor"]
    assert expected(found, "rollout, actor", tokens=WORK.tokens, prompt=WORK.prompt_tokens) == of["rollout, actor"]
    with pytest.raises(KeyError):
        expected(found, "nobody")


def test_a_probe_measures_its_second_step() -> None:
    """The first makes what stays: Adam's moments."""
    weight = torch.nn.Parameter(torch.zeros(1000))
    optimizer = torch.optim.AdamW([weight], foreach=True)

    def step() -> None:
        (weight * 1.0).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    with Tracker() as tracker:
        tracker.call_them("weights", [weight])
        assert probe(step, Counted(tracker)) == pytest.approx(20_000, abs=50)
    with pytest.raises(UsageError, match="probe on a GPU"):
        probe(step, ProcessMeter())


def test_a_factor_makes_the_plan_say_what_was_measured(found: Plan, tmp_path: Path) -> None:
    """And changes what does not come and go by nothing."""
    bare = needs(found)
    measured = {"actor": bare["actor"].total + 0.25 * bare["actor"].working, "critic": bare["critic"].total}
    factors = calibrate(found, measured, A100, tmp_path / "calibration.json")
    assert factors == {"actor": pytest.approx(1.25), "critic": pytest.approx(1.0)}
    again = plan(WORK, replace(found.machine, factors=factors))
    rows = {one.phase.name: one.rows for one in found.phases}
    assert expected(again, "actor", rows=rows["actor"]) == pytest.approx(measured["actor"])
    assert again.rows("actor") < found.rows("actor") and again.rows("guidance") == found.rows("guidance")
    assert needs(again)["actor"].working < bare["actor"].working, "fewer rows, and no factor in what a probe is held to"


def test_what_takes_less_than_its_weights_is_told_and_left(found: Plan, tmp_path: Path,
                                                           caplog: pytest.LogCaptureFixture) -> None:
    assert calibrate(found, {"actor": 1.0}, A100, tmp_path / "file.json") == {}
    assert "it is left as it is" in caplog.records[0].getMessage()


def test_the_file_keeps_one_of_each_key_and_adds_phases(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    other = replace(A100, gpu="NVIDIA H100 80GB HBM3")
    for key, factors in ((A100, {"actor": 1.1, "critic": 0.9}), (other, {"actor": 1.2}), (A100, {"actor": 1.05})):
        keep(path, Calibration(key=key, factors=factors))
    assert {one.key: one.factors for one in read(path)} == {
        A100: {"actor": 1.05, "critic": 0.9}, other: {"actor": 1.2}}
    assert [one.name for one in tmp_path.iterdir()] == ["calibration.json"]


def test_only_the_same_model_gpu_and_torch_is_chosen() -> None:
    kept = [Calibration(key=key, factors={}) for key in (A100, replace(A100, gpu="NVIDIA H100 80GB HBM3"),
                                                         replace(A100, model="other", parameters=1))]
    shape = WORK.model
    assert chosen(kept, shape, "a100", "2.13.0").key == A100
    for gpu, version, said in (("", "2.13.0", "name one with --gpu-type"), ("h200", "2.13.0", "probe again"),
                               ("a100", "2.14.0", "A100-SXM4-80GB with torch 2.13.0, NVIDIA H100")):
        with pytest.raises(UsageError, match=said):
            chosen(kept, shape, gpu, version)
    with pytest.raises(UsageError, match="nothing of this model"):
        chosen(kept, shape_of("tiny"), "", "2.13.0")


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2, "calibrations": []}', '{"format": 1}',
                                  '{"format": 1, "calibrations": [{"model": "m"}]}',
                                  '{"format": 1, "calibrations": [{"model": "m", "parameters": 1, "gpu": "g", '
                                  '"torch": "t", "factors": {"actor": -1}}]}'])
def test_a_file_that_is_something_else_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(text)
    with pytest.raises(InputError, match="not a calibration of this version"):
        read(path)
    with pytest.raises(InputError, match="no such file"):
        read(tmp_path / "none.json")


def test_r2v_plan_takes_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, rows = tmp_path / "calibration.json", []
    keep(path, Calibration(key=replace(A100, torch=torch.__version__), factors={"actor": 1.5}))
    parser = argparse.ArgumentParser()
    add_commands(parser.add_subparsers())
    for more in ([], ["--calibration", str(path), "--gpu-type", "a100"]):
        values = parser.parse_args(["plan", "--model", "meta-llama/Llama-3.2-3B", "--checkpointing", "on", "--json",
                                    *more])
        assert values.act(values) == 0
        rows.append(json.loads(capsys.readouterr().out)["devices"][0]["phases"])
    assert rows[1]["actor"]["rows"] < rows[0]["actor"]["rows"]
    assert rows[1]["critic"] == rows[0]["critic"]
