"""Cost: GPU- and CPU-hours of every attempt as Slurm accounts them, and the share that was wasted."""

from __future__ import annotations

import json

import pytest

from r2v.cli import main as cli
from r2v.slurm.chain import chain as chains
from r2v.slurm.chain.chain import Attempt
from r2v.slurm.views.chain_status import statuses
from r2v.slurm.views.cost import AttemptCost, attempt_costs
from r2v.slurm.views.sources import gather
from tests.slurm.faked import Faked, ago
from tests.slurm.faked import faked as faked

TWO = "billing=16,cpu=16,gres/gpu:a100=2,gres/gpu=2,mem=60G,node=1"


def lived(faked: Faked) -> None:
    """Make a chain: bc was preempted, then failed; its second attempt is running, and a job by hand beside it."""
    chain = faked.chain()
    chains.write(faked.root, chain.with_attempt("bc", Attempt(id="150", sentinel="151", reason="host_oom")))
    faked.accounted("100", "COMPLETED", ElapsedRaw=1800)
    faked.accounted("102", "COMPLETED", ElapsedRaw=7200, AllocTRES="billing=8,cpu=8,mem=16G,node=1")
    faked.accounted("104", "PREEMPTED", ElapsedRaw=900, AllocTRES=TWO, _old=True)
    faked.accounted("104", "OUT_OF_MEMORY", ElapsedRaw=2700, AllocTRES=TWO, ExitCode="0:125")
    faked.accounted("104.batch", "OUT_OF_MEMORY", ElapsedRaw=2700, AllocTRES="cpu=16,gres/gpu=2")
    faked.accounted("150", "RUNNING", ElapsedRaw=360, AllocTRES=TWO)
    faked.accounted("106", "PENDING", ElapsedRaw=0, AllocTRES="")
    faked.record("777", start={"job": "verifier", "restart": 0, "at": ago(99)})
    faked.accounted("777", "FAILED", ElapsedRaw=36, ExitCode="1:0", AllocTRES="gres/gpu:a100=1")
    faked.answer()


def costs() -> dict[tuple[str, str], AttemptCost]:
    (status,) = statuses(gather(["desk_noisy"], costs=True))
    return {(one.job, one.id): one for one in attempt_costs(status)}


def test_gpu_hours_are_alloctres_times_elapsed(faked: Faked) -> None:
    lived(faked)
    found = costs()
    assert found["collect", "100"].gpu_hours == 0.5 and found["collect", "100"].wasted == 0
    assert (found["perturb", "102"].hours, found["perturb", "102"].gpu_hours) == (2.0, 0.0)
    first, second = found["bc", "104"], found["bc", "150"]
    assert (first.starts, first.attempt, second.attempt) == (2, 1, 2)
    assert first.gpu_hours == first.wasted == 2 * (900 + 2700) / 3600
    assert (second.gpu_hours, second.wasted) == (2 * 360 / 3600, 0.0)
    assert found["verifier", "777"].wasted == pytest.approx(0.01)
    assert faked.calls == ["squeue", "sacct"]


def test_the_wasted_share_is_told(faked: Faked, capsys: pytest.CaptureFixture[str]) -> None:
    lived(faked)
    assert cli.main(["cost"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "desk_noisy: 2.71 GPU-hours, 2.01 of them wasted (74%); 37.60 CPU-hours; nothing paid"
    assert lines[4].split() == ["bc", "1", "104", "2", "1.00", "2.00", "2.00", "16.00", "out_of_memory"]
    assert cli.main(["cost", "desk_noisy", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["chains"][0]
    assert told["gpu_hours"] == pytest.approx(2.71) and len(told["attempts"]) == 12


def test_an_array_of_helpers_is_a_line_of_its_job(faked: Faked, capsys: pytest.CaptureFixture[str]) -> None:
    faked.chain()
    faked.accounted("116", "COMPLETED", ElapsedRaw=3600)
    faked.record("116", helpers={"arrays": ["90", "95"]})
    for task, state, elapsed in (("1", "COMPLETED", 1800), ("2", "PREEMPTED", 900), ("3", "CANCELLED", 0)):
        faked.accounted(f"90_{task}", state, ElapsedRaw=elapsed)
    faked.accounted("90_2.batch", "CANCELLED", ElapsedRaw=900)
    faked.answer()
    found = costs()
    helping = found["evaluate helpers", "90"]
    assert (helping.starts, helping.hours, helping.gpu_hours, helping.wasted) == (2, 0.75, 0.75, 0.25)
    assert found["evaluate", "116"].gpu_hours == 1.0 and found["evaluate helpers", "95"].starts == 0
    assert cli.main(["cost"]) == 0
    assert capsys.readouterr().out.startswith("desk_noisy: 1.75 GPU-hours, 0.25 of them wasted (14%)")


def test_without_accounting_it_is_refused_in_one_line(faked: Faked, capsys: pytest.CaptureFixture[str]) -> None:
    lived(faked)
    faked.down("sacct", "Slurm accounting storage is disabled")
    assert cli.main(["cost"]) == 5
    assert "only accounting knows" in capsys.readouterr().err
