"""OOM retry: repetition of a step that runs out of GPU memory with half the micro-batch, on all ranks together.

Ranks that disagree would wait for each other for ever. So after each attempt the ranks exchange whether any ran out; if
so, all free their memory, drop their gradients and repeat the whole step with half the rows. The sum of the gradients
is that of the original step. `step` must not communicate: a rank that ran out could not answer the others. Sharded
weights (FSDP, ZeRO-3) are gathered in the forward pass, so their step cannot be retried here: the error ends all ranks,
and healing (r2v.slurm.healing.heal) resubmits the job with a smaller micro-batch.

Generation is local to a rank (`alone`): ranks make different numbers of calls and need not agree on their size.
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
    """Result of a step, and its micro-batch in rows."""

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
    """Run step(rows), halving rows until no rank runs out of GPU memory. All ranks call it with the same rows, or, with
    `alone`, this rank without communication.

    `step` processes its batch `rows` at a time and leaves, for any `rows`, the same sum of gradients in `parameters`,
    which are dropped before each attempt. Raise EnvironmentFault on all ranks, recorded as cuda_oom, if one row at a
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
            "  out of GPU memory, repeating the step: phase=%s micro_batch=%d next_micro_batch=%d ranks=%s",
            *(phase, rows, rows // 2, ",".join(map(str, out_of_memory))),
        )
        rows //= 2


def _drop_gradients(parameters: list[torch.nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None


def _attempt(step: Callable[[int], T], rows: int) -> tuple[tuple[T] | None, str | None]:
    """Return (result of the step, None), or (None, message) out of memory. The error itself is dropped: its traceback
    refers to the frames of the step, and they to its activations."""
    try:
        return (step(rows),), None
    except RuntimeError as error:  # cuBLAS and CUDA itself raise other types than torch.OutOfMemoryError
        record = describe(error)
        if record["kind"] != "cuda_oom":
            raise
        return None, str(record["message"])


def _ranks_where(condition: bool, alone: bool) -> list[int]:
    """Return the ranks where the condition holds, the same list on all of them; with `alone` at most this one."""
    if not (group.is_available() and group.is_initialized()):
        return [0] if condition else []
    if alone:
        return [group.get_rank()] if condition else []
    device = "cuda" if group.get_backend() == "nccl" else "cpu"
    if condition and device == "cuda":
        _free_memory()  # the flags need some too
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
