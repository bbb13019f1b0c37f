"""How long each tensor of a layer lives: a forward and a backward pass played on paper, in bytes.

    tape = Tape()
    x = tape.input(2048)
    y = tape.op(x, out=4096, saves=(x,), weights=1024)     # a trained matrix: it keeps x for its own gradient
    tape.profile(x, y).keeps                                # what is still there when the layer has ended

Rules, those of torch's autograd: a tensor goes when nobody reads it any more and no operation keeps it for its
backward; backward runs in reverse, makes the gradient of each input that wants one, then lets go what was kept; the
second gradient that reaches a tensor is added in place unless the first one is shared.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, eq=False)
class Paper:
    """A tensor of which only the size matters."""

    size: float
    wants: bool
    """Whether a gradient flows back to it."""


@dataclass(frozen=True, kw_only=True)
class _Op:
    inputs: tuple[Paper, ...]
    reads: tuple[Paper, ...]
    out: Paper
    saves: tuple[Paper, ...]
    extra: float
    temp: float
    back: float
    weights: float
    passes: bool


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Bytes of one segment of a model, its input counted until it goes."""

    forward: float
    """Most at a time while it runs forward, keeping what backward needs."""
    keeps: float
    """There when it has ended: what backward needs, and its output."""
    kept: float
    """The same without its output, unless that is needed too: there when its backward begins."""
    silent: float
    """Most at a time while it runs forward and keeps nothing."""
    again: float
    """Most at a time while it runs forward once more in backward (checkpointing), which ends where the last tensor
    that backward needs is there."""
    backward: float
    """Most at a time while it runs backward, the gradient of its output among it."""
    leaves: float
    """There when its backward has ended: the gradient of its input, and of its weights where those are new."""
    entering: float
    """Its input."""
    leaving: float
    """Its output."""


@dataclass
class _Grad:
    size: float
    owners: int = 1


@dataclass
class Tape:
    """Operations in the order they are done. `fresh` says that the gradients of weights are made for the first
    time; else each is made and added to the one that is there."""

    fresh: bool = False
    _ops: list[_Op] = field(default_factory=list)

    def input(self, size: float, wants: bool = True) -> Paper:
        """What the segment is given."""
        return Paper(size=size, wants=wants)

    def op(
        self,
        *inputs: Paper,
        out: float,
        reads: tuple[Paper, ...] = (),
        saves: tuple[Paper, ...] = (),
        saves_out: bool = False,
        extra: float = 0,
        temp: float = 0,
        back: float = 0,
        weights: float = 0,
        passes: bool = False,
    ) -> Paper:
        """One operation; its output has `out` bytes.

        A caller's name keeps `reads` alive until here. The operation keeps `saves` for backward (and its own output,
        and `extra` bytes); it needs `temp` bytes more while it runs, and `back` while its backward does; `weights`
        are the bytes of its weights' gradient. Where it `passes`, its inputs' gradients are its output's itself, as
        in an addition.
        """
        wants = bool(weights) or any(one.wants for one in inputs)
        result = Paper(size=out, wants=wants)
        kept = ((*saves, result) if saves_out else saves) if wants else ()
        self._ops.append(
            _Op(
                inputs=inputs,
                reads=reads,
                out=result,
                saves=kept,
                extra=extra,
                temp=temp,
                back=back,
                weights=weights,
                passes=passes,
            )
        )
        return result

    def profile(self, x: Paper, y: Paper, *, held: bool = False) -> Profile:
        """What the operations from `x` to `y` need; `held`: a caller's name keeps `x` alive until they have ended."""
        forward, keeps, kept = self._forward(x, y, keeping=True, held=held)
        silent, _, _ = self._forward(x, y, keeping=False, held=held)
        again, _, _ = self._forward(x, y, keeping=True, held=held, stops=True)
        backward, leaves = self._backward(x, y, kept)
        return Profile(
            forward=forward,
            keeps=keeps,
            kept=kept,
            silent=silent,
            again=again,
            backward=backward,
            leaves=leaves,
            entering=x.size,
            leaving=y.size,
        )

    def _forward(
        self, x: Paper, y: Paper, *, keeping: bool, held: bool, stops: bool = False
    ) -> tuple[float, float, float]:
        last = {id(one): at for at, op in enumerate(self._ops) for one in (*op.inputs, *op.reads)}
        if held:
            last[id(x)] = len(self._ops) - 1
        saved = {id(one) for op in self._ops for one in op.saves} if keeping else set[int]()
        sizes = {id(x): x.size}
        extra = peak = 0.0
        final = max((at for at, op in enumerate(self._ops) if op.saves or op.extra), default=-1) if stops else None
        for at, op in enumerate(self._ops):
            if at == final and id(op.out) not in {id(one) for one in op.saves}:
                return max(peak, sum(sizes.values()) + extra + op.extra), 0, 0
            sizes[id(op.out)] = op.out.size
            own = op.extra if keeping and op.out.wants else 0
            peak = max(peak, sum(sizes.values()) + extra + op.temp + op.extra)
            extra += own
            for one in (x, *op.inputs, *op.reads, op.out):
                if one is not y and last.get(id(one), at) <= at and id(one) not in saved:
                    sizes.pop(id(one), None)
        keeps = sum(sizes.values()) + extra
        return max(peak, keeps), keeps, keeps - (0 if id(y) in saved else y.size)

    def _backward(self, x: Paper, y: Paper, kept: float) -> tuple[float, float]:
        holders: dict[int, int] = {}
        for op in self._ops:
            for one in op.saves:
                holders[id(one)] = holders.get(id(one), 0) + 1
        grads = {id(y): _Grad(y.size)}
        live = peak = kept + y.size
        for op in reversed(self._ops):
            if not op.out.wants or id(op.out) not in grads:
                continue
            grad = grads.pop(id(op.out))
            made, live = _inputs(op, grad, live)
            peak = max(peak, live + op.back + op.weights)
            live += op.weights if self.fresh else 0
            live -= op.extra
            for one in op.saves:
                holders[id(one)] -= 1
                live -= 0 if holders[id(one)] else one.size
            grad.owners -= 1
            live -= 0 if grad.owners else grad.size
            for one, new in made:
                live, peak = _add(grads, one, new, live, peak)
        return peak, live


def _inputs(op: _Op, grad: _Grad, live: float) -> tuple[list[tuple[Paper, _Grad]], float]:
    made = []
    for one in op.inputs:
        if not one.wants:
            continue
        if op.passes and one.size == grad.size:
            grad.owners += 1
            made.append((one, grad))
        else:
            made.append((one, _Grad(one.size)))
            live += one.size
    return made, live


def _add(grads: dict[int, _Grad], one: Paper, new: _Grad, live: float, peak: float) -> tuple[float, float]:
    """Put a gradient where others of the same tensor may be."""
    old = grads.get(id(one))
    if old is None:
        grads[id(one)] = new
        return live, peak
    if old.owners > 1:
        live += one.size
        peak = max(peak, live)
        grads[id(one)] = _Grad(one.size)
        old.owners -= 1
    new.owners -= 1
    return live - (0 if new.owners else new.size), peak
