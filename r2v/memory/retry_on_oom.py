"""A step that runs out of a GPU's memory is done again with fewer rows at a time, by all ranks together.

    done = redo(step, rows, parameters, phase="actor")       # step(rows) leaves the gradients of its whole batch
    rows = done.rows                                         # what fits from here on
    ...                                                      # gradients are summed over ranks after it

Ranks that disagree would wait for each other for ever: so each tells the others whether it ran out, and where any
did, all let go what they hold, drop their gradients and do the whole step again with half the rows. The sum of the
gradients is that of the step as it was meant. `step` itself must not speak to other ranks: one that ran out could not
answer. Weights that are shared out (FSDP, ZeRO 3) are put together in the forward pass, so their step speaks all the
time, and is not for this: there the error ends all ranks, and healing (r2v.slurm.healing.heal) begins again with
fewer rows.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as group

from r2v.errors import EnvironmentFault
from r2v.log import logger
from r2v.storage.record import Recorded, describe

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Done(Generic[T]):
    """What a step returned, and the rows at a time that it was done with."""

    result: T
    rows: int


def redo(step: Callable[[int], T], rows: int, parameters: Iterable[torch.nn.Parameter] = (), *, phase: str) -> Done[T]:
    """Run step(rows), halving rows until no rank runs out of GPU memory. All ranks call it with the same rows.

    `step` takes its batch `rows` at a time and gives, for any `rows`, the same sum of gradients in `parameters`;
    those are dropped before each try. Raises EnvironmentFault on all ranks, recorded as cuda_oom, where one row at a
    time is still too much; what else a step raises passes.
    """
    trained = list(parameters)
    while True:
        for one in trained:
            one.grad = None
        result, failure = _tried(step, rows)
        out = _ranks_that(failure is not None)
        if not out:
            assert result is not None
            return Done(result=result[0], rows=rows)
        result = None
        for one in trained:
            one.grad = None
        _let_go()
        if rows == 1:
            raise _too_much(phase, out, failure)
        logger.warning(
            "  memory: %s ran out of GPU memory with %d rows at a time%s; the step is done again with %d",
            phase,
            rows,
            _where(out),
            rows // 2,
        )
        rows //= 2


def _tried(step: Callable[[int], T], rows: int) -> tuple[tuple[T] | None, str | None]:
    """Its result, or what it said when it ran out. The error itself is not kept: it holds all that the step held."""
    try:
        return (step(rows),), None
    except RuntimeError as error:  # cuBLAS and CUDA itself run out with errors of their own
        told = describe(error)
        if told["kind"] != "cuda_oom":
            raise
        return None, str(told["message"])


def _ranks_that(mine: bool) -> list[int]:
    """The ranks of which it is true, on all ranks alike; [0] or none in a plain process."""
    if not (group.is_available() and group.is_initialized()):
        return [0] if mine else []
    device = "cuda" if group.get_backend() == "nccl" else "cpu"
    if mine and device == "cuda":
        _let_go()
    told = torch.zeros(group.get_world_size(), device=device)
    told[group.get_rank()] = float(mine)
    group.all_reduce(told)
    return [int(at) for at in told.nonzero()]


def _let_go() -> None:
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def _where(out: list[int]) -> str:
    return f" (rank {', '.join(map(str, out))})" if group.is_initialized() else ""


def _too_much(phase: str, out: list[int], failure: str | None) -> EnvironmentFault:
    said = (
        f"{phase}: out of GPU memory with a single row at a time{_where(out)}; turn checkpointing on, shorten "
        "rows, load the base in 4 bits, or take a larger GPU (r2v plan says which fits)"
    )
    error = EnvironmentFault(said)
    told: dict[str, Any] = {
        "type": "torch.OutOfMemoryError",
        "kind": "cuda_oom",
        "exit_code": error.exit_code,
        "message": said if failure is None else f"{said}: {failure}",
        "where": None,
    }
    error.__cause__ = Recorded(told)
    return error
