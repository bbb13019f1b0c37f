"""Number of concurrent runs, by the measured memory and GPU memory of earlier ones."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from r2v.experiments.schedule.slots import FreeMemory, GpuWatch, free_gpu_memory, slots_that_fit

GIB = 2**30


@dataclass
class Measured:
    """Measured peaks of a run."""

    peak_bytes: int | None
    gpu_bytes: list[int] = field(default_factory=list)


def test_slots_go_by_what_the_runs_so_far_needed() -> None:
    assert slots_that_fit([], FreeMemory(memory=64 * GIB), 8) == 1
    assert slots_that_fit([Measured(None)], FreeMemory(memory=64 * GIB), 8) == 1
    assert slots_that_fit([Measured(6 * GIB)], FreeMemory(memory=10 * GIB), 8) == 1
    assert slots_that_fit([Measured(2 * GIB), Measured(3 * GIB)], FreeMemory(memory=10 * GIB), 8) == 3
    assert slots_that_fit([Measured(GIB)], FreeMemory(memory=64 * GIB), 8) == 8


def test_gpus_bound_them_where_runs_take_them_and_an_unmeasured_one_has_one_slot() -> None:
    free = FreeMemory(memory=64 * GIB, gpus=(40 * GIB, 80 * GIB))
    assert slots_that_fit([Measured(GIB)], free, 8) == 1
    assert slots_that_fit([Measured(GIB, [0, 0])], free, 8) == 8
    assert slots_that_fit([Measured(GIB, [0, 20 * GIB]), Measured(GIB, [0, 30 * GIB])], free, 8) == 2
    assert slots_that_fit([Measured(GIB, [35 * GIB, 0])], free, 8) == 1


def test_a_run_is_measured_while_it_works_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert GpuWatch(()).taken("run_001") == []
    smi = tmp_path / "nvidia-smi"

    def has_free(*mib: int) -> None:
        smi.write_text("#!/bin/sh\n" + "".join(f"echo {one}\n" for one in mib))
        smi.chmod(0o755)

    has_free(40000, 80000)
    watch = GpuWatch(free_gpu_memory(), every=0.0)
    has_free(10000, 80000)
    watch.look(["run_001"])
    has_free(30000, 80000)
    watch.look(["run_001"])
    has_free(0, 0)
    watch.look(["run_001", "run_002"])
    assert watch.taken("run_001") == [30000 << 20, 0] and watch.taken("run_002") == []
    smi.write_text("#!/bin/sh\nexit 9\n")
    assert free_gpu_memory() == ()
