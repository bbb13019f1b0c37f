"""Rehearsal: one run of a case at one shape and depth, on fake tensors or on a GPU with random weights.

The code of a case is a function in the stage's row of JOBS:

    def memory(run: Rehearsal) -> None:
        model = run.decoder()
        run.train(model, lambda: loss(model, run.ids(), *run.positions()))

It runs one micro-batch of the stage's own forward pass and loss on fixed shapes; the rehearsal runs backward and the
optimizer's step, twice, and marks the running layer by hooks. `run.read` and `run.mark` are for code that trains
nothing.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from r2v.memory.measured import models
from r2v.memory.measured.tracker import Mark, Tracker
from r2v.memory.measurement import MeasuredCase

WEIGHTS, OPTIMIZER = "weights", "optimizer"
_DTYPES = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}


@dataclass(frozen=True, kw_only=True)
class FixedShape:
    """Shape of a micro-batch."""

    rows: int
    tokens: int
    predicted: int
    """Number of last tokens of each row whose log-probabilities are computed."""


@dataclass(frozen=True, kw_only=True)
class Traced:
    """Finished rehearsal; sizes in bytes."""

    trace: dict[Mark, list[int]]
    operations: dict[Mark, list[int]]
    static: int
    """Weights and optimizer, included in every figure of the trace."""
    weights: int
    trained: int
    """Number of trained parameters."""
    trained_bytes: int
    flops: int

    @property
    def peak(self) -> int:
        """Largest number of live bytes."""
        return max(max(sizes) for sizes in self.trace.values() if sizes)


class Rehearsal:
    """Models, tensors and passes for the code of a case."""

    def __init__(
        self,
        case: MeasuredCase,
        shape: FixedShape,
        tracker: Tracker,
        *,
        depth: int | None = None,
        device: str = "cpu",
        brief: bool = False,
    ) -> None:
        self.case, self.shape, self.depth, self.device, self.brief = case, shape, depth, device, brief
        self._tracker = tracker
        self._batch = 0
        self.trained = self.trained_bytes = self.flops = self.weights = self.static = 0

    def bare(self) -> Any:
        """Return the case's model on torch's meta device, for code that extends it before calling `place`."""
        config = models.config_of(self.case.model, self.depth)
        with self.empty():
            return models.skeleton(config, _DTYPES[self.case.width])

    @contextmanager
    def empty(self) -> Iterator[None]:
        """Make modules in this block on torch's meta device, without counting tensors."""
        with unset_fake_temporarily(), torch.device("meta"):
            yield

    def decoder(self) -> Any:
        """Return the case's model, materialized and counted: with adapters, fully trained, or frozen."""
        case, model = self.case, self.bare()
        model.train(case.action == "train").requires_grad_(not case.frozen)
        with self.empty():
            if case.four_bit:
                models.pack(model)
            if case.rank:
                model = models.adapted(model, case)
        if case.checkpoint:
            enable = getattr(model, "activation_checkpointing_enable", None)  # its name since transformers 5.23
            (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
        models.materialize(model, _DTYPES[case.adapter_width])
        self.count(model)
        return model

    def place(self, module: nn.Module) -> Any:
        """Return the code's own module from torch's meta device, materialized and counted among the weights."""
        models.materialize(module)
        self.count(module)
        return module

    def count(self, module: nn.Module) -> None:
        """Count a module's tensors among the weights."""
        self._tracker.label(WEIGHTS, models.shared_tensors(module))

    def ids(self, texts: int = 1) -> Tensor:
        """Return token ids (rows * texts, tokens)."""
        return torch.zeros(self.shape.rows * texts, self.shape.tokens, dtype=torch.long)

    def positions(self) -> tuple[Tensor, Tensor]:
        """Return rows and columns, (rows * predicted,) each, of the predicted tokens, the last of each row."""
        columns = range(self.shape.tokens - self.shape.predicted, self.shape.tokens)
        rows = torch.arange(self.shape.rows).repeat_interleave(len(columns))
        return rows, torch.arange(columns.start, columns.stop).repeat(self.shape.rows)

    def autocast(self) -> Any:
        """Return a context of bfloat16 products if the case has autocast."""
        return torch.autocast(self.device, torch.bfloat16, enabled=self.case.autocast)

    def train(self, module: nn.Module, loss: Callable[[], Tensor]) -> None:
        """Run two micro-batches of an update and its step, after a first step that makes the moments; a brief rehearsal
        runs the second micro-batch only, without an optimizer. `loss` opens its own autocast."""
        parameters = [weight for weight in module.parameters() if weight.requires_grad]
        self.trained = sum(weight.numel() for weight in parameters)
        self.trained_bytes = sum(weight.nbytes for weight in parameters)
        for weight in parameters:
            weight.grad = torch.zeros_like(weight)
        optimizer = None if self.brief else self._optimizer(parameters)
        with self._watched(module):
            for batch in (1,) if self.brief else (0, 1):
                self._batch, self._calls = batch, {"forward": 0, "backward": 0}
                self._tracker.mark(Mark(batch=batch, action="forward"))
                value = loss()
                self._tracker.mark(Mark(batch=batch, action="backward"))
                value.backward()  # type: ignore[no-untyped-call]
                del value
                self.flops = self.flops or self._tracker.flops
            if optimizer is not None:
                self._tracker.mark(Mark(batch=1, action="step"))
                optimizer.step()
                optimizer.zero_grad()
        self._end()

    def _optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Return AdamW after a first step, with its moments counted and the gradients freed."""
        optimizer = torch.optim.AdamW(parameters, foreach=not self.case.fused, fused=self.case.fused)
        optimizer.step()
        optimizer.zero_grad()
        moments = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
        self._tracker.label(OPTIMIZER, moments)
        return optimizer

    def read(self, module: nn.Module, code: Callable[[], Any], action: str = "read") -> Any:
        """Run a pass without gradients and return its result."""
        self._calls = {action: 0}
        module.eval()
        with torch.no_grad(), self._watched(module):
            self.mark(action)
            result = code()
        self.flops = self.flops or self._tracker.flops
        self._end()
        return result

    def mark(self, action: str) -> None:
        """Begin a stretch of code without training: read, prompt, choose or token."""
        self._calls = {action: 0}
        self._tracker.mark(Mark(batch=0, action=action))

    def _end(self) -> None:
        """Record the persistent bytes while the models are alive."""
        self._tracker.mark(None)
        parts = self._tracker.parts
        self.weights = parts.get(WEIGHTS, 0)
        self.static = self.weights + parts.get(OPTIMIZER, 0)

    @contextmanager
    def _watched(self, module: nn.Module) -> Iterator[None]:
        """Set marks by hooks on the layers and the output embedding."""
        whole: Any = module
        core = whole.get_base_model() if hasattr(module, "peft_config") else whole
        layers = models.layers_of(core)
        head = core.get_output_embeddings() if hasattr(core, "get_output_embeddings") else None
        with ExitStack() as stack:
            for number, layer in enumerate(layers):
                before = partial(self._layer_begins, number)
                after = partial(self._layer_ends, number, number + 1 == len(layers))
                stack.callback(layer.register_forward_pre_hook(before).remove)
                stack.callback(layer.register_forward_hook(after).remove)
            if head is not None:
                stack.callback(head.register_forward_pre_hook(self._head_begins).remove)
                stack.callback(head.register_forward_hook(self._head_ends).remove)
            yield

    @property
    def _action(self) -> str:
        current = self._tracker.current
        return current.action if current is not None else ""

    def _move(self, unit: str, index: int, action: str | None = None) -> None:
        """Mark a part of the model in the running pass; recomputation belongs to backward."""
        if self._tracker.current is not None:
            self._tracker.mark(Mark(batch=self._batch, action=action or self._action, unit=unit, index=index))

    def _layer_begins(self, number: int, module: nn.Module, inputs: Any) -> None:
        if self._action != "backward":
            if number == 0 and inputs and isinstance(inputs[0], Tensor) and inputs[0].requires_grad:
                inputs[0].register_hook(lambda _: self._move("embedding", 0, "backward"))  # type: ignore[no-untyped-call]
            self._move("layer", number)

    def _layer_ends(self, number: int, last: bool, module: nn.Module, inputs: Any, output: Any) -> None:
        states = output[0] if isinstance(output, tuple) else output
        if self._action == "backward":
            return
        if isinstance(states, Tensor) and states.requires_grad:
            states.register_hook(lambda _: self._move("layer", number, "backward"))  # type: ignore[no-untyped-call]
        if last:
            self._move("top", 0)

    def _head_begins(self, module: nn.Module, inputs: Any) -> None:
        action = self._action
        self._move("head", self._calls.get(action, 0))
        self._calls[action] = self._calls.get(action, 0) + 1

    def _head_ends(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        if output.requires_grad and self._action == "forward":
            output.register_hook(lambda _: self._move("head", 0, "backward") if not self._recomputes else None)  # type: ignore[no-untyped-call]

    @property
    def _recomputes(self) -> bool:
        """True if the head has run again in this backward pass, which marked its calls."""
        return self._calls.get("backward", 0) > 0


def code_of(case: MeasuredCase) -> Callable[[Rehearsal], None]:
    """Return the function named by `case.code`."""
    module, _, name = case.code.partition(":")
    function: Callable[[Rehearsal], None] = getattr(importlib.import_module(module), name)
    return function


def rehearse(case: MeasuredCase, shape: FixedShape, depth: int | None = None, *, brief: bool = False) -> Traced:
    """Run a case on fake tensors at a depth (None: the model's own). `brief`: train only the second micro-batch of an
    update."""
    with ExitStack() as stack:
        stack.enter_context(_without_collection())
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        tracker = stack.enter_context(Tracker())
        return _run(Rehearsal(case, shape, tracker, depth=depth, brief=brief), tracker)


@contextmanager
def _without_collection() -> Iterator[None]:
    """Disable garbage collection in this block: its timing would make rehearsals differ."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def rehearse_on_gpu(case: MeasuredCase, shape: FixedShape) -> int:
    """Run a case on this process's GPU with random weights; return torch.cuda.max_memory_allocated without cuBLAS's
    persistent workspaces. Raise torch.OutOfMemoryError for a case larger than the GPU."""
    gc.collect()  # models of earlier cases are parts of reference cycles
    with torch.device("cuda"), torch.random.fork_rng(), Tracker() as tracker:
        run = Rehearsal(case, shape, tracker, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        _run(run, tracker)
    peak = torch.cuda.max_memory_allocated()
    del run, tracker
    gc.collect()
    return int(peak - torch.cuda.memory_allocated())


def _run(run: Rehearsal, tracker: Tracker) -> Traced:
    code_of(run.case)(run)
    return Traced(
        trace=dict(tracker.trace),
        operations=dict(tracker.operations),
        static=run.static,
        weights=run.weights,
        trained=run.trained,
        trained_bytes=run.trained_bytes,
        flops=run.flops,
    )
