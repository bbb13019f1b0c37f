"""Retry on OOM: a step that runs out of GPU memory is repeated with half the micro-batch, by all ranks together.

    result = retry_on_oom(step, rows, parameters, phase="actor")    # step(rows) leaves the gradients of its whole batch
    rows = result.rows                                              # the micro-batch that fits from here on
    ...                                                             # gradients are reduced over ranks after it

Ranks that disagree on what to do would wait for each other for ever. So after each attempt every rank learns whether
any of them ran out; if one did, all free their memory, drop their gradients and repeat the whole step with half the
rows. The sum of the gradients is that of the step as it was meant. `step` must not communicate: a rank that ran out
could not answer the others. Sharded weights (FSDP, ZeRO-3) are gathered in the forward pass, so their step communicates
all the time and cannot be retried here: the error ends all ranks, and healing (r2v.slurm.healing.heal) resubmits the
job with a smaller micro-batch.

Generation is each rank's own business: ranks make different numbers of calls, and what one makes in smaller parts the
others need not know (`alone`).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
import torch.distributed as group

from r2v.errors import EnvironmentFault
from r2v.log import logger
from r2v.storage.record import Recorded, describe, entry

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class RetryResult(Generic[T]):
    """What a step returned, and the rows at a time (micro-batch) that it ran with."""

    result: T
    rows: int


def retry_on_oom(
    step: Callable[[int], T],
    rows: int,
    parameters: Iterable[torch.nn.Parameter] = (),
    *,
    phase: str,
    alone: bool = False,
) -> RetryResult[T]:
    """Run step(rows), halving rows until no rank runs out of GPU memory. All ranks call it with the same rows; or, with
    `alone`, this rank by itself, telling the others nothing.

    `step` takes its batch `rows` at a time and leaves, for any `rows`, the same sum of gradients in `parameters`; they
    are dropped before each attempt. Raises EnvironmentFault on all ranks, recorded as cuda_oom, where one row at a
    time is still too much; any other error of a step passes.
    """
    trained = list(parameters)
    while True:
        _drop_gradients(trained)
        result, failure = _attempt(step, rows)
        out_of_memory = _ranks_where(failure is not None, alone)
        if not out_of_memory:
            assert result is not None
            return RetryResult(result=result[0], rows=rows)
        result = None  # on a rank that succeeded it may hold activations
        _drop_gradients(trained)
        _free_memory()
        if rows == 1:
            raise _still_out_of_memory(phase, out_of_memory, failure)
        logger.warning(
            "  memory: %s ran out of GPU memory with a micro-batch of %d%s; the step is repeated with %d",
            phase,
            rows,
            _ranks_text(out_of_memory),
            rows // 2,
        )
        rows //= 2


def _drop_gradients(parameters: list[torch.nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None


def _attempt(step: Callable[[int], T], rows: int) -> tuple[tuple[T] | None, str | None]:
    """(its result, None), or (None, the message) where it ran out of memory. The error itself is dropped: its traceback
    refers to the frames of the step, and they to its activations."""
    try:
        return (step(rows),), None
    except RuntimeError as error:  # cuBLAS and CUDA itself raise other types than torch.OutOfMemoryError
        record = describe(error)
        if record["kind"] != "cuda_oom":
            raise
        return None, str(record["message"])


def _ranks_where(condition: bool, alone: bool) -> list[int]:
    """The ranks where the condition holds, the same list on all of them; of a rank by itself at most its own."""
    if not (group.is_available() and group.is_initialized()):
        return [0] if condition else []
    if alone:
        return [group.get_rank()] if condition else []
    device = "cuda" if group.get_backend() == "nccl" else "cpu"
    if condition and device == "cuda":
        _free_memory()  # else there may be none for the flags
    flags = torch.zeros(group.get_world_size(), device=device)
    flags[group.get_rank()] = float(condition)
    group.all_reduce(flags)
    return [int(rank) for rank in flags.nonzero()]


def _free_memory() -> None:
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def _ranks_text(ranks: list[int]) -> str:
    return f" (rank {', '.join(map(str, ranks))})" if group.is_initialized() else ""


def _still_out_of_memory(phase: str, ranks: list[int], failure: str | None) -> EnvironmentFault:
    message = (
        f"{phase}: out of GPU memory with a micro-batch of 1{_ranks_text(ranks)}; turn checkpointing on, shorten "
        "sequences, load the base in 4 bits, or take a larger GPU (r2v plan says which fits)"
    )
    error = EnvironmentFault(message)
    recorded = message if failure is None else f"{message}: {failure}"
    error.__cause__ = Recorded(entry("torch.OutOfMemoryError", "cuda_oom", error.exit_code, recorded))
    return error
