"""Rehearsals of generation and scoring for the memory planner: one wave of the local decoder on fixed shapes.

A rehearsal runs the prefill of prompts one token short of the limit, the choice of a token, and the last decoding step,
when the KV cache is at its longest.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from r2v.llm.local.decode import Batch
from r2v.llm.local.prefill import prefill
from r2v.llm.sampling import choose

if TYPE_CHECKING:
    from r2v.memory.measured.rehearsal import Rehearsal


def memory(run: Rehearsal) -> None:
    """Rehearse `generate` or `score`, by the measured case."""
    (generate if run.case.action == "generate" else score)(run)


def generate(run: Rehearsal, passes: Callable[[Any], AbstractContextManager[None]] = nullcontext) -> None:
    """Rehearse a wave of `rows` completions. `passes`: context of the model's passes."""
    model, rows = run.decoder(), run.shape.rows
    temperature, top_p = {"greedy": (0.0, 1.0), "sampled": (1.0, 1.0), "nucleus": (1.0, 0.9)}[run.case.sampling]

    def chosen(logits: Tensor) -> Any:
        return choose(logits[list(range(len(logits)))], [temperature] * rows, [top_p] * rows, [0.5] * rows)

    def wave() -> None:
        prompts = [[0] * (run.shape.tokens - 1)] * rows
        with run.autocast(), passes(model):
            batch, row_of = Batch.prefill(model, prompts, 0, None, None)
            run.mark("copied")
            batch.select([row_of[row] for row in range(rows)][::-1])
            run.mark("choose")
            chosen(batch.logits)
            run.mark("token")
            batch.step([0] * rows)
            run.mark("last choose")
            chosen(batch.logits)

    run.read(model, wave, "prompt")


def score(run: Rehearsal) -> None:
    """Rehearse a verifier's pass over `rows` contexts with their actions; its KV cache lives to the end."""
    model: Any = run.decoder()
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    rows = [[0] * run.shape.tokens] * run.shape.rows
    core: nn.Module = base.base_model
    run.read(model, lambda: prefill(core, rows, 0, None), "read")
