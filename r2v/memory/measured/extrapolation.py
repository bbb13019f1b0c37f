"""Extrapolation: polynomials of a case's memory from a few rehearsals, checked by another one.

Rehearsals run the same operations at every shape, so the live bytes after each are a polynomial of rows and tokens
(`TERMS`). Layers of one kind run the same operations too: the live bytes after the k-th operation of a layer are linear
in the number of layers. So each operation is extrapolated by itself, first over depth and then over shapes, before the
maximum is taken. A run at a third depth and another shape must agree to TOLERANCE; otherwise the whole model is run at
each shape, and if that is no polynomial either, the model is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

import numpy as np
from huggingface_hub.errors import StrictDataclassError
from numpy.typing import NDArray

from r2v.errors import UsageError
from r2v.memory.measured.models import Pattern, studied
from r2v.memory.measured.rehearsal import FixedShape, Traced, rehearse
from r2v.memory.measured.tracker import Mark
from r2v.memory.measurement import TERMS, MeasuredCase, MeasuredMemory, ModelSizes, Moment, terms
from r2v.memory.model_registry import ModelConfigValues

TOLERANCE = 1e-3
_PLAIN = 64
"""Tokens of the smallest shape for code that computes no logits."""
_Location = tuple[int, str, str, int]
"""Micro-batch, action, unit, and index of the unit, from the end if negative."""
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class _Fit:
    """Coefficients of every operation, (terms, operations), by location, and figures of the model."""

    locations: dict[_Location, Floats]
    flops: Floats
    figures: Floats
    """Static bytes, bytes of weights, number of trained parameters and their bytes."""


@dataclass(frozen=True, kw_only=True)
class _Line:
    """Fits at two depths, or at the model's own depth."""

    depths: tuple[int, ...]
    fits: tuple[_Fit, ...]

    def at(self, depth: int) -> _Fit:
        """Return the fit of a model with `depth` layers."""
        if len(self.fits) == 1:
            return self.fits[0]
        first, other = self.fits
        share = (depth - self.depths[0]) / (self.depths[1] - self.depths[0])
        return _Fit(
            locations={at: values + share * (other.locations[at] - values) for at, values in first.locations.items()},
            flops=first.flops + share * (other.flops - first.flops),
            figures=first.figures + share * (other.figures - first.figures),
        )


_REFUSALS = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, RuntimeError, TypeError, ValueError),
    StrictDataclassError,
)
"""Errors of models that do not run on fake tensors or are not supported."""


def sizes_of(values: ModelConfigValues) -> ModelSizes:
    """Return the parameter counts of a model by its config.json. Raise UsageError if transformers cannot build it."""
    try:
        return studied(values)[1]
    except _REFUSALS as error:
        raise UsageError(f"{values.get('model_type')}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def measure(case: MeasuredCase) -> MeasuredMemory:
    """Return the measurement of a case. Raise UsageError if its model does not run on fake tensors, or its memory is no
    polynomial of rows and tokens."""
    model = case.model.get("model_type")
    try:
        pattern = studied(case.model)[0]
        for chosen in (pattern, Pattern(depth=pattern.depth, start=0, period=pattern.depth)):
            line = _line(case, chosen)
            if _holds(case, chosen, line):
                return _measurement(case, pattern.depth, line.at(pattern.depth))
    except _REFUSALS as error:
        raise UsageError(f"{model}: {case.code} does not run on tensors without data ({_first_line(error)})") from error
    raise UsageError(f"{model}: the memory of {case.code} is no polynomial of rows and tokens; name another model")


def shapes_of(case: MeasuredCase) -> tuple[list[FixedShape], FixedShape]:
    """Return the shapes to measure, one for each term, and one to check the fit."""
    unit = case.chunk or min(_PLAIN, _window(case) // 4)
    if case.single_chunk:
        unit = max(8, unit // 16)
    if case.beyond_window:
        unit = max(unit, 2 * _window(case))
    shapes = [(rows, length * unit, 1) for length in (1, 2, 3) for rows in (2, 3)]
    check = (4, 5 * unit // 2, 1)
    if case.completions:
        shapes = [(rows, 2 * tokens, 2) for rows, tokens, _ in shapes] + [(2, 4 * unit, 4)]
        check = (4, 5 * unit, 5)
    return [_shape(case, rows, tokens, share) for rows, tokens, share in shapes], _shape(case, *check)


def _window(case: MeasuredCase) -> int:
    section = case.model.get("text_config") or case.model
    return int(section.get("sliding_window") or 4096)


def _shape(case: MeasuredCase, rows: int, tokens: int, share: int = 1) -> FixedShape:
    return FixedShape(rows=rows, tokens=tokens, predicted=tokens // share)


@dataclass(frozen=True, kw_only=True)
class _LocatedRun:
    run: Traced
    locations: dict[_Location, Floats]
    operations: dict[_Location, list[int]]


def _located(run: Traced, pattern: Pattern, depth: int) -> _LocatedRun:
    """Return a run's live bytes beyond the static ones by location: of the layers the first and last ones, of the
    head's calls the first and the last, since the others lie between these."""
    calls: dict[tuple[int, str], int] = {}
    for mark in run.trace:
        if mark.unit == "head":
            calls[mark.batch, mark.action] = max(calls.get((mark.batch, mark.action), 0), mark.index + 1)
    begins = pattern.start + pattern.period
    locations, operations = dict[_Location, Floats](), dict[_Location, list[int]]()
    for mark, sizes in run.trace.items():
        index = _index(mark, begins, depth - pattern.ends, depth, calls)
        if sizes and index is not None:
            operations[mark.batch, mark.action, mark.unit, index] = run.operations[mark]
            locations[mark.batch, mark.action, mark.unit, index] = np.array(sizes, dtype=np.float64) - run.static
    if not run.trained:
        last = list(run.trace.values())[-1][-1]
        locations[0, "held", "", 0] = np.array([last], dtype=np.float64) - run.static
        operations[0, "held", "", 0] = [0]
    return _LocatedRun(run=run, locations=locations, operations=operations)


def _index(mark: Mark, begins: int, ends: int, depth: int, calls: Mapping[tuple[int, str], int]) -> int | None:
    if mark.unit == "head":
        last = calls[mark.batch, mark.action] - 1
        return 0 if mark.index == 0 else -1 if mark.index == last else None
    if mark.unit != "layer" or mark.index < begins:
        return mark.index
    return mark.index - depth if mark.index >= ends else None


def _alike(sequences: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return, for each run, the indices of its operations that all runs have, in order.

    A loop over chunks makes some runs longer: operations are then counted from the beginning as far as all runs agree,
    the others from the end; the skipped rounds of the loop have live bytes between those of the kept ones.
    """
    first, count = sequences[0], min(map(len, sequences))
    begin = next((at for at in range(count) if len({run[at] for run in sequences}) > 1), count)
    end = next((at for at in range(count) if len({run[-1 - at] for run in sequences}) > 1), count)
    if begin + end >= count:
        begin = (count - end + begin) // 2  # the middle of the part that both ends share
        return [[*range(begin), *range(len(run) - count + begin, len(run))] for run in sequences]
    shared = [_matches(first[begin:], run[begin:]) for run in sequences]
    common = [at for at in range(len(first) - begin) if all(at in matches for matches in shared)]
    return [[*range(begin), *(begin + matches[at] for at in common)] for matches in shared]


def _matches(sequence: Sequence[int], other: Sequence[int]) -> dict[int, int]:
    """Return index in `sequence` -> index in `other` of their matching operations."""
    blocks = SequenceMatcher(None, sequence, other, autojunk=False).get_matching_blocks()
    return {block.a + k: block.b + k for block in blocks for k in range(block.size)}


def _line(case: MeasuredCase, pattern: Pattern) -> _Line:
    """Return the fits at each depth from one full rehearsal and brief ones at the other shapes."""
    depths, shapes = pattern.depths[:2], shapes_of(case)[0]
    runs = [
        _located(rehearse(case, shape, depth, brief=number > 0), pattern, depth)
        for depth in depths
        for number, shape in enumerate(shapes)
    ]
    # Only a full rehearsal has the first micro-batch, and the optimizer's step, which is independent of the shape.
    firsts = runs[:: len(shapes)]
    names = set.intersection(*(set(run.locations) for run in runs))
    alone = set.intersection(*(set(run.locations) for run in firsts)) - names
    shared = {name: _alike([run.operations[name] for run in runs]) for name in names}
    steps = {name: _alike([run.operations[name] for run in firsts]) for name in alone if name[0]}
    fits = []
    for number, first in enumerate(firsts):
        begin = number * len(shapes)
        own = {name: some[begin : begin + len(shapes)] for name, some in shared.items()}
        fit = _solved(case, runs[begin : begin + len(shapes)], own)
        fit.locations.update({name: _constant(first.locations[name][some[number]]) for name, some in steps.items()})
        fit.locations.update(_fresh(first, fit.locations, {name: some[0] for name, some in own.items()}))
        fits.append(fit)
    located = [fit.locations for fit in fits]
    same = [name for name in located[0] if len({each[name].shape for each in located if name in each}) == 1]
    return _Line(
        depths=depths,
        fits=tuple(replace(fit, locations={name: fit.locations[name] for name in sorted(same)}) for fit in fits),
    )


def _constant(sizes: Floats) -> Floats:
    return np.vstack([sizes, np.zeros((len(TERMS) - 1, len(sizes)))])


def _fresh(
    first: _LocatedRun, accumulated: Mapping[_Location, Floats], shared: Mapping[_Location, list[int]]
) -> dict[_Location, Floats]:
    """Return the fit of an update's first micro-batch from that of the second: it runs the same operations except those
    that add gradients, and the live bytes differ by gradients, which are independent of the shape."""
    fits = dict[_Location, Floats]()
    for location, operations in shared.items():
        own = (0, *location[1:])
        if location[0] == 0 or own not in first.locations:
            continue
        matches = _matches(first.operations[location], first.operations[own])
        pairs = np.array([(at, k, matches[k]) for at, k in enumerate(operations) if k in matches])
        if len(pairs):
            coefficients = accumulated[location][:, pairs[:, 0]].copy()
            coefficients[0] += first.locations[own][pairs[:, 2]] - first.locations[location][pairs[:, 1]]
            fits[own] = coefficients
    return fits


def _columns(case: MeasuredCase) -> list[int]:
    """Return the indices of the fitted terms: without `predicted` if all tokens are predicted."""
    return list(range(len(TERMS) if case.completions else len(TERMS) - 1))


def _solved(case: MeasuredCase, runs: Sequence[_LocatedRun], shared: Mapping[_Location, list[list[int]]]) -> _Fit:
    columns = _columns(case)
    matrix = np.array([[_terms(shape)[column] for column in columns] for shape in shapes_of(case)[0]])
    scale = np.abs(matrix).max(axis=0)

    def solve(values: Floats) -> Floats:
        coefficients = np.zeros((len(TERMS), values.shape[1]))
        coefficients[columns] = np.linalg.solve(matrix / scale, values) / scale[:, None]
        return coefficients

    first = runs[0].run
    return _Fit(
        locations={
            name: solve(np.array([run.locations[name][some] for run, some in zip(runs, own, strict=True)]))
            for name, own in shared.items()
        },
        flops=solve(np.array([[float(run.run.flops)] for run in runs])),
        figures=np.array([first.static, first.weights, first.trained, first.trained_bytes], dtype=np.float64),
    )


def _terms(shape: FixedShape) -> tuple[float, ...]:
    return terms(shape.rows, shape.tokens, shape.rows * shape.predicted)


def _holds(case: MeasuredCase, pattern: Pattern, line: _Line) -> bool:
    """True if a run at another depth and shape has the peaks predicted by the line for each stretch."""
    shape, depth = shapes_of(case)[1], pattern.depths[-1]
    run, fit = rehearse(case, shape, depth), line.at(depth)
    static, values = fit.figures[0], np.array(_terms(shape))
    measured, predicted = dict[str, float](), dict[str, float]()
    for location, sizes in _located(run, pattern, depth).locations.items():
        name = _stretch(location)
        measured[name] = max(measured.get(name, 0.0), float(sizes.max()) + run.static)
        if location in fit.locations:
            predicted[name] = max(predicted.get(name, 0.0), float((values @ fit.locations[location]).max()) + static)
    return all(abs(predicted.get(name, 0.0) - size) <= TOLERANCE * size for name, size in measured.items())


def _stretch(location: _Location) -> str:
    batch, action = location[:2]
    return ("fresh", "accumulated")[batch] if action in ("forward", "backward") else action


def _measurement(case: MeasuredCase, depth: int, fit: _Fit) -> MeasuredMemory:
    """Return the measurement: the operations that are the peak of their stretch at some shape."""
    grid = _grid(case)
    best: dict[str, tuple[Floats, list[tuple[_Location, int]]]] = {}
    for location, coefficients in fit.locations.items():
        sizes = grid @ coefficients
        at, top = sizes.argmax(axis=1), sizes.max(axis=1)
        stretch = _stretch(location)
        own = [(location, int(k)) for k in at]
        if stretch in best:
            before, owners = best[stretch]
            higher = top > before
            own = [new if up else old for up, new, old in zip(higher, own, owners, strict=True)]
            top = np.maximum(top, before)
        best[stretch] = top, own
    moments = {
        (stretch, location, k): Moment(
            stretch=stretch, name=_name(location, depth), terms=tuple(map(float, fit.locations[location][:, k]))
        )
        for stretch, (_, owners) in best.items()
        for location, k in owners
    }
    _, weights, trained, trained_bytes = fit.figures
    return MeasuredMemory(
        moments=tuple(moments[key] for key in sorted(moments)),
        flops=tuple(map(float, fit.flops[:, 0])),
        trained=round(trained),
        trained_bytes=round(trained_bytes),
        weights=round(weights),
    )


def _grid(case: MeasuredCase) -> Floats:
    """Return TERMS, (shapes, terms), at the shapes searched for the largest operations."""
    lengths = [round(16 * 2 ** (n / 2)) for n in range(27)]
    shares = (0.05, 0.25, 0.5, 1.0) if case.completions else (1.0,)
    shapes = [
        (rows, tokens, rows * tokens * share)
        for rows in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 1024)
        for tokens in lengths
        for share in shares
    ]
    possible = [shape for shape in shapes if not case.chunk or (shape[2] <= case.chunk) == case.single_chunk]
    return np.array([terms(*shape) for shape in possible or shapes])


def _name(location: _Location, depth: int) -> str:
    """Return a name such as "backward, layer 28 of 28" or "forward, logits"."""
    _, action, unit, index = location
    if unit == "layer":
        return f"{action}, layer {(index if index >= 0 else depth + index) + 1} of {depth}"
    if action == "step":
        return "optimizer step"
    return f"{action}, {'logits' if unit == 'head' else unit}" if unit else action
