"""Tape: a simulation of a forward and a backward pass that follows the lifetime of every tensor, in bytes.

    tape = Tape()
    x = tape.input(2048)
    y = tape.op(x, out=4096, saves=(x,), weights=1024)     # a trained matrix: it keeps x for its own gradient
    tape.profile(x, y).after_forward                        # what is still there when the layer has ended

The rules are those of torch's autograd. A tensor is freed when nothing reads it any more and no operation saved it for
its backward. Backward runs in reverse: it makes the gradient of each input that requires one, then frees what the
operation had saved. The second gradient that reaches a tensor is added in place, unless the first one is shared.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, eq=False)
class SizedTensor:
    """A tensor of which only the size matters."""

    size: float
    requires_grad: bool
    """Whether a gradient flows back to it."""


@dataclass(frozen=True, kw_only=True)
class _Op:
    inputs: tuple[SizedTensor, ...]
    reads: tuple[SizedTensor, ...]
    out: SizedTensor
    saves: tuple[SizedTensor, ...]
    extra: float
    temp: float
    back: float
    weights: float
    passes: bool


@dataclass(frozen=True, kw_only=True)
class SegmentProfile:
    """Bytes of one segment of a model; its input counts until it is freed."""

    forward: float
    """Peak while it runs forward and saves what backward needs."""
    after_forward: float
    """Live when it has ended: what backward needs, and its output."""
    saved: float
    """The same without its output, unless backward needs that too: live when its backward begins."""
    no_grad: float
    """Peak while it runs forward and saves nothing."""
    recompute: float
    """Peak while it runs forward again in backward (checkpointing), which ends as soon as the last tensor that backward
    needs is there."""
    backward: float
    """Peak while it runs backward, the gradient of its output included."""
    after_backward: float
    """Live when its backward has ended: the gradient of its input, and of its weights where those are new."""
    input: float
    """Bytes of its input."""
    output: float
    """Bytes of its output."""


@dataclass
class _Gradient:
    size: float
    owners: int = 1


@dataclass
class Tape:
    """Operations in the order they run. `fresh`: the weights have no gradients yet, so new ones stay; otherwise each
    gradient is made and added to the one that is there."""

    fresh: bool = False
    _ops: list[_Op] = field(default_factory=list)

    def input(self, size: float, requires_grad: bool = True) -> SizedTensor:
        """The input of the segment."""
        return SizedTensor(size=size, requires_grad=requires_grad)

    def op(
        self,
        *inputs: SizedTensor,
        out: float,
        reads: tuple[SizedTensor, ...] = (),
        saves: tuple[SizedTensor, ...] = (),
        saves_out: bool = False,
        extra: float = 0,
        temp: float = 0,
        back: float = 0,
        weights: float = 0,
        passes: bool = False,
    ) -> SizedTensor:
        """One operation; its output has `out` bytes.

        reads: tensors that a variable of the caller keeps alive until here.
        saves: inputs that are saved for backward; `saves_out`: its output too; `extra`: further bytes saved.
        temp: temporary bytes while it runs; `back`: while its backward runs.
        weights: bytes of the gradient of its weights.
        passes: the gradient of its output is, unchanged, that of its inputs, as in an addition.
        """
        requires_grad = bool(weights) or any(tensor.requires_grad for tensor in inputs)
        result = SizedTensor(size=out, requires_grad=requires_grad)
        saved = ((*saves, result) if saves_out else saves) if requires_grad else ()
        self._ops.append(
            _Op(
                inputs=inputs,
                reads=reads,
                out=result,
                saves=saved,
                extra=extra,
                temp=temp,
                back=back,
                weights=weights,
                passes=passes,
            )
        )
        return result

    def profile(self, x: SizedTensor, y: SizedTensor, *, held: bool = False) -> SegmentProfile:
        """The bytes of the operations from `x` to `y`; `held`: a variable of the caller keeps `x` alive to the end."""
        forward, after_forward, saved = self._forward(x, y, saving=True, held=held)
        no_grad, _, _ = self._forward(x, y, saving=False, held=held)
        recompute, _, _ = self._forward(x, y, saving=True, held=held, early_stop=True)
        backward, after_backward = self._backward(x, y, saved)
        return SegmentProfile(
            forward=forward,
            after_forward=after_forward,
            saved=saved,
            no_grad=no_grad,
            recompute=recompute,
            backward=backward,
            after_backward=after_backward,
            input=x.size,
            output=y.size,
        )

    def _forward(
        self, x: SizedTensor, y: SizedTensor, *, saving: bool, held: bool, early_stop: bool = False
    ) -> tuple[float, float, float]:
        """(peak, live at the end, the same without the output)."""
        last_read = {id(tensor): number for number, op in enumerate(self._ops) for tensor in (*op.inputs, *op.reads)}
        if held:
            last_read[id(x)] = len(self._ops) - 1
        saved = {id(tensor) for op in self._ops for tensor in op.saves} if saving else set[int]()
        live = {id(x): x.size}
        extra = peak = 0.0
        # Checkpointing runs forward again only until everything that backward needs is there.
        last_saving = max((number for number, op in enumerate(self._ops) if op.saves or op.extra), default=-1)
        for number, op in enumerate(self._ops):
            if early_stop and number == last_saving and id(op.out) not in {id(tensor) for tensor in op.saves}:
                return max(peak, sum(live.values()) + extra + op.extra), 0, 0
            live[id(op.out)] = op.out.size
            peak = max(peak, sum(live.values()) + extra + op.temp + op.extra)
            extra += op.extra if saving and op.out.requires_grad else 0
            for tensor in (x, *op.inputs, *op.reads, op.out):
                read_again = last_read.get(id(tensor), number) > number
                if tensor is not y and not read_again and id(tensor) not in saved:
                    live.pop(id(tensor), None)
        at_end = sum(live.values()) + extra
        return max(peak, at_end), at_end, at_end - (0 if id(y) in saved else y.size)

    def _backward(self, x: SizedTensor, y: SizedTensor, saved: float) -> tuple[float, float]:
        """(peak, live at the end)."""
        savers = Counter(id(tensor) for op in self._ops for tensor in op.saves)
        gradients = {id(y): _Gradient(y.size)}
        live = peak = saved + y.size
        for op in reversed(self._ops):
            if not op.out.requires_grad or id(op.out) not in gradients:
                continue
            gradient = gradients.pop(id(op.out))
            made, live = _input_gradients(op, gradient, live)
            peak = max(peak, live + op.back + op.weights)
            live += op.weights if self.fresh else 0
            live -= op.extra
            for tensor in op.saves:
                savers[id(tensor)] -= 1
                live -= 0 if savers[id(tensor)] else tensor.size
            gradient.owners -= 1
            live -= 0 if gradient.owners else gradient.size
            for tensor, new in made:
                live, peak = _accumulate(gradients, tensor, new, live, peak)
        return peak, live


def _input_gradients(op: _Op, gradient: _Gradient, live: float) -> tuple[list[tuple[SizedTensor, _Gradient]], float]:
    """The gradients of an operation's inputs, and the bytes live with them."""
    made = []
    for tensor in op.inputs:
        if not tensor.requires_grad:
            continue
        if op.passes and tensor.size == gradient.size:
            gradient.owners += 1
            made.append((tensor, gradient))
        else:
            made.append((tensor, _Gradient(tensor.size)))
            live += tensor.size
    return made, live


def _accumulate(
    gradients: dict[int, _Gradient], tensor: SizedTensor, new: _Gradient, live: float, peak: float
) -> tuple[float, float]:
    """Add a gradient to the one that its tensor may have already; returns (live, peak)."""
    old = gradients.get(id(tensor))
    if old is None:
        gradients[id(tensor)] = new
        return live, peak
    if old.owners > 1:  # shared with another tensor, so it cannot be added to in place
        live += tensor.size
        peak = max(peak, live)
        gradients[id(tensor)] = _Gradient(tensor.size)
        old.owners -= 1
    new.owners -= 1
    return live - (0 if new.owners else new.size), peak
