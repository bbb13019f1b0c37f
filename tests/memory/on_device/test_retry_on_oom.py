"""Running out of GPU memory: the step is repeated, with the same gradient and by all ranks, and leaves nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from r2v.distributed import launch
from r2v.errors import EnvironmentFault
from r2v.memory.on_device.retry_on_oom import retry_on_oom
from r2v.slurm.healing.classify import failure_kind
from r2v.storage.record import describe

from . import runs_out
from .runs_out import BATCH, Trained

pytestmark = pytest.mark.usefixtures("warm_ranks")


@pytest.fixture(autouse=True)
def own_objects() -> Iterator[None]:
    """Exclude other tests' objects from the collections of a failed step: they take seconds with them."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize(("most", "rows"), [(11, 6), (4, 3), (1, 1)])
def test_the_gradient_is_that_of_the_undisturbed_step(most: int, rows: int) -> None:
    whole, halved = Trained(BATCH), Trained(most)
    undisturbed, done = whole.run(BATCH), halved.run(BATCH)
    assert undisturbed.rows == BATCH and done.rows == rows and max(halved.runs.seen[-(BATCH // rows) :]) == rows
    assert done.result == pytest.approx(undisturbed.result, rel=1e-12)
    torch.testing.assert_close(halved.gradients, whole.gradients, rtol=0, atol=1e-12)
    alone = Trained(BATCH)
    alone.run(rows)
    assert torch.equal(halved.gradients, alone.gradients), "bit for bit that of a step of so many rows"


def test_what_earlier_micro_batches_left_is_not_counted_twice() -> None:
    """The third micro-batch of four fails: the gradients of the two before it are dropped."""
    told = Trained(2)
    told.run(3)
    assert told.runs.seen == [3, 3, 3, 3] + [1] * 12
    alone = Trained(BATCH)
    alone.step(1)
    assert torch.equal(told.gradients, alone.gradients)


def test_several_updates_end_in_the_same_weights() -> None:
    whole, _, _ = runs_out.train(BATCH)
    halved, taken, _ = runs_out.train(3)
    assert taken == [3] * 5
    torch.testing.assert_close(halved, whole, rtol=0, atol=1e-12)


def test_nothing_of_the_failed_try_is_alive_in_the_next() -> None:
    """An error holds the frames that it passed, and they hold activations: it must be gone before the next try."""
    told = Trained(6)
    alive: list[int] = []

    def step(rows: int) -> float:
        alive.append(sum(one() is not None for one in told.runs.alive))
        return told.step(rows)

    retry_on_oom(step, BATCH, told.model.parameters(), phase="actor")
    assert alive == [0, 0] and len(told.runs.alive) == 1 + 2


def test_one_line_tells_of_it(caplog: pytest.LogCaptureFixture) -> None:
    Trained(6).run(BATCH)
    assert [one.getMessage() for one in caplog.records] == [
        "  out of GPU memory, repeating the step: phase=actor micro_batch=12 next_micro_batch=6 ranks=0"
    ]


def test_one_row_too_much_is_what_healing_calls_cuda_oom() -> None:
    told = Trained(0)
    with pytest.raises(EnvironmentFault, match="micro-batch of 1; turn checkpointing on") as caught:
        told.run(BATCH)
    assert failure_kind(caught.value.exit_code, describe(caught.value)) == "cuda_oom"
    assert all(one.grad is None for one in told.model.parameters())


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: out of memory"),
        torch.OutOfMemoryError("HIP out of it"),
        RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
    ],
)
def test_every_way_in_which_CUDA_says_it(error: RuntimeError) -> None:
    tries: list[int] = []

    def step(rows: int) -> int:
        tries.append(rows)
        if rows > 1:
            raise error
        return rows

    assert retry_on_oom(step, 4, phase="rollout").result == 1 and tries == [4, 2, 1]


def test_any_other_error_passes() -> None:
    def step(rows: int) -> None:
        raise RuntimeError("shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes"):
        retry_on_oom(step, 4, phase="actor")


def test_two_ranks_of_which_one_runs_out_do_it_again_together(tmp_path: Path) -> None:
    launch(2, runs_out.__file__, str(tmp_path), "halves")
    kept = {name: [torch.load(tmp_path / f"{name}-{rank}.pt") for rank in range(2)] for name in ("whole", "halved")}
    for rank in range(2):
        weights, taken, gradients = kept["halved"][rank]
        assert taken == [3] * 5, "the rank that had memory enough went along"
        torch.testing.assert_close(gradients, kept["whole"][0][2], rtol=0, atol=1e-12)
        torch.testing.assert_close(weights, kept["whole"][0][0], rtol=0, atol=1e-12)
    assert kept["whole"][0][1] == [BATCH] * 5
    assert torch.equal(kept["halved"][0][0], kept["halved"][1][0])


def test_two_ranks_of_which_one_can_never_fail_together(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"micro-batch of 1 \(rank 1\)") as caught:
        launch(2, runs_out.__file__, str(tmp_path), "never")
    assert failure_kind(caught.value.exit_code, describe(caught.value)) == "cuda_oom"
