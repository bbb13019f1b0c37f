"""Extrapolation: the polynomials of a case from a few rehearsals, checked by another one.

    measure(MeasuredCase(code="r2v.policy.rehearsal:bc", action="train", model=values, rank=16, width=2, frozen=True))

Rehearsals run the same operations at every shape, so the bytes that are live after one of them are a polynomial of rows
and tokens (`TERMS`). Layers of one kind run the same operations too: what is live after the k-th operation of a layer
is linear in the number of layers. So each operation is extrapolated by itself, over depth first and then over shapes,
and only then the maximum is taken. A run at a third depth and another shape must be right to TOLERANCE; else the whole
model is run at each shape, and where that is no polynomial either the model is refused.
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
"""Tokens of the smallest shape of code that makes no logits."""
_Place = tuple[int, str, str, int]
"""Micro-batch, action, unit, and the index of the unit: from the end where it is negative."""
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class _Fit:
    """Coefficients of every operation, (terms, operations), by place; and of the figures that go with them."""

    places: dict[_Place, Floats]
    flops: Floats
    figures: Floats
    """Static bytes, bytes of weights, trained parameters and bytes of them."""


@dataclass(frozen=True, kw_only=True)
class _Line:
    """Fits at two depths, or at the model's own."""

    depths: tuple[int, ...]
    fits: tuple[_Fit, ...]

    def at(self, depth: int) -> _Fit:
        """The fit of a model of so many layers."""
        if len(self.fits) == 1:
            return self.fits[0]
        one, other = self.fits
        share = (depth - self.depths[0]) / (self.depths[1] - self.depths[0])
        return _Fit(
            places={place: values + share * (other.places[place] - values) for place, values in one.places.items()},
            flops=one.flops + share * (other.flops - one.flops),
            figures=one.figures + share * (other.figures - one.figures),
        )


_REFUSALS = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, RuntimeError, TypeError, ValueError),
    StrictDataclassError,
)
"""What models raise that do not run on tensors without data, or are not what this package takes."""


def sizes_of(values: ModelConfigValues) -> ModelSizes:
    """The counts of a model's parameters, by its config.json. Raises UsageError where transformers cannot build it."""
    try:
        return studied(values)[1]
    except _REFUSALS as error:
        raise UsageError(f"{values.get('model_type')}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def measure(case: MeasuredCase) -> MeasuredMemory:
    """The measurement of a case. Raises UsageError where its model cannot run on tensors without data, or where its
    memory is no polynomial of rows and tokens."""
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
    """The shapes to measure, one for each term that there is, and one to check them by."""
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
    made = [_shape(case, rows, tokens, share) for rows, tokens, share in shapes]
    return made, _shape(case, *check)


def _window(case: MeasuredCase) -> int:
    section = case.model.get("text_config") or case.model
    return int(section.get("sliding_window") or 4096)


def _shape(case: MeasuredCase, rows: int, tokens: int, share: int = 1) -> FixedShape:
    return FixedShape(rows=rows, tokens=tokens, predicted=tokens // share)


@dataclass(frozen=True, kw_only=True)
class _Placed:
    run: Traced
    places: dict[_Place, Floats]
    operations: dict[_Place, list[int]]


def _placed(run: Traced, pattern: Pattern, depth: int) -> _Placed:
    """Live bytes beyond the static ones, by place. Of the layers the first and the last ones are kept, of the head's
    calls the first and the last: what is live in those between lies between."""
    calls: dict[tuple[int, str], int] = {}
    for mark in run.trace:
        if mark.unit == "head":
            calls[mark.batch, mark.action] = max(calls.get((mark.batch, mark.action), 0), mark.index + 1)
    begins, places, operations = pattern.start + pattern.period, dict[_Place, Floats](), dict[_Place, list[int]]()
    for mark, sizes in run.trace.items():
        index = _index(mark, begins, depth - pattern.ends, depth, calls)
        if sizes and index is not None:
            operations[mark.batch, mark.action, mark.unit, index] = run.operations[mark]
            places[mark.batch, mark.action, mark.unit, index] = np.array(sizes, dtype=np.float64) - run.static
    if not run.trained:
        last = list(run.trace.values())[-1][-1]
        places[0, "held", "", 0] = np.array([last], dtype=np.float64) - run.static
        operations[0, "held", "", 0] = [0]
    return _Placed(run=run, places=places, operations=operations)


def _index(mark: Mark, begins: int, ends: int, depth: int, calls: Mapping[tuple[int, str], int]) -> int | None:
    if mark.unit == "head":
        last = calls[mark.batch, mark.action] - 1
        return 0 if mark.index == 0 else -1 if mark.index == last else None
    if mark.unit != "layer" or mark.index < begins:
        return mark.index
    return mark.index - depth if mark.index >= ends else None


def _alike(sequences: Sequence[Sequence[int]]) -> list[list[int]]:
    """For each run, its operations that all runs have, in order. A loop over chunks makes some runs longer: there
    operations are counted from the beginning as far as all runs have the same ones, the others from the end, and what
    is live in the loop's rounds between lies between."""
    first, count = sequences[0], min(map(len, sequences))
    begin = next((at for at in range(count) if len({one[at] for one in sequences}) > 1), count)
    end = next((at for at in range(count) if len({one[-1 - at] for one in sequences}) > 1), count)
    if begin + end >= count:
        begin = (count - end + begin) // 2  # in the middle of what both ends have in common
        return [[*range(begin), *range(len(one) - count + begin, len(one))] for one in sequences]
    shared = [_matches(first[begin:], one[begin:]) for one in sequences]
    common = [at for at in range(len(first) - begin) if all(at in one for one in shared)]
    return [[*range(begin), *(begin + one[at] for at in common)] for one in shared]


def _matches(one: Sequence[int], other: Sequence[int]) -> dict[int, int]:
    """Indices of the operations of one sequence in another."""
    blocks = SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks()
    return {block.a + k: block.b + k for block in blocks for k in range(block.size)}


def _line(case: MeasuredCase, pattern: Pattern) -> _Line:
    """One full rehearsal at each depth, and brief ones at the other shapes."""
    depths, shapes = pattern.depths[:2], shapes_of(case)[0]
    runs = [
        _placed(rehearse(case, shape, depth, brief=number > 0), pattern, depth)
        for depth in depths
        for number, shape in enumerate(shapes)
    ]
    # of a full rehearsal alone: the first micro-batch, and the optimizer's step, which does not depend on the shape
    firsts = runs[:: len(shapes)]
    names = set.intersection(*(set(run.places) for run in runs))
    alone = set.intersection(*(set(run.places) for run in firsts)) - names
    kept = {name: _alike([run.operations[name] for run in runs]) for name in names}
    steps = {name: _alike([run.operations[name] for run in firsts]) for name in alone if name[0]}
    fits = []
    for number, first in enumerate(firsts):
        begin = number * len(shapes)
        own = {name: some[begin : begin + len(shapes)] for name, some in kept.items()}
        fit = _solved(case, runs[begin : begin + len(shapes)], own)
        fit.places.update({name: _constant(first.places[name][some[number]]) for name, some in steps.items()})
        fit.places.update(_fresh(first, fit.places, {name: some[0] for name, some in own.items()}))
        fits.append(fit)
    same = [name for name in fits[0].places if len({fit.places[name].shape for fit in fits if name in fit.places}) == 1]
    return _Line(
        depths=depths,
        fits=tuple(replace(fit, places={name: fit.places[name] for name in sorted(same)}) for fit in fits),
    )


def _constant(sizes: Floats) -> Floats:
    return np.vstack([sizes, np.zeros((len(TERMS) - 1, len(sizes)))])


def _fresh(
    first: _Placed, accumulated: Mapping[_Place, Floats], kept: Mapping[_Place, list[int]]
) -> dict[_Place, Floats]:
    """The first micro-batch of an update, by the second one: it runs the same operations but those that add gradients,
    and what is live differs by gradients, which do not depend on the shape."""
    found = dict[_Place, Floats]()
    for place, operations in kept.items():
        own = (0, *place[1:])
        if place[0] == 0 or own not in first.places:
            continue
        matches = _matches(first.operations[place], first.operations[own])
        pairs = np.array([(at, k, matches[k]) for at, k in enumerate(operations) if k in matches])
        if len(pairs):
            coefficients = accumulated[place][:, pairs[:, 0]].copy()
            coefficients[0] += first.places[own][pairs[:, 2]] - first.places[place][pairs[:, 1]]
            found[own] = coefficients
    return found


def _columns(case: MeasuredCase) -> list[int]:
    """The terms that are measured: the predicted tokens where they are not all of them."""
    return list(range(len(TERMS) if case.completions else len(TERMS) - 1))


def _solved(case: MeasuredCase, runs: Sequence[_Placed], kept: Mapping[_Place, list[list[int]]]) -> _Fit:
    columns = _columns(case)
    matrix = np.array([[_terms(shape)[column] for column in columns] for shape in shapes_of(case)[0]])
    scale = np.abs(matrix).max(axis=0)

    def solve(values: Floats) -> Floats:
        found = np.zeros((len(TERMS), values.shape[1]))
        found[columns] = np.linalg.solve(matrix / scale, values) / scale[:, None]
        return found

    first = runs[0].run
    return _Fit(
        places={
            name: solve(np.array([run.places[name][some] for run, some in zip(runs, own, strict=True)]))
            for name, own in kept.items()
        },
        flops=solve(np.array([[float(run.run.flops)] for run in runs])),
        figures=np.array([first.static, first.weights, first.trained, first.trained_bytes], dtype=np.float64),
    )


def _terms(shape: FixedShape) -> tuple[float, ...]:
    return terms(shape.rows, shape.tokens, shape.rows * shape.predicted)


def _holds(case: MeasuredCase, pattern: Pattern, line: _Line) -> bool:
    """True if a run at another depth and shape has the peaks that the line says, of each stretch."""
    shape, depth = shapes_of(case)[1], pattern.depths[-1]
    run, fit = rehearse(case, shape, depth), line.at(depth)
    static, values = fit.figures[0], np.array(_terms(shape))
    seen, said = dict[str, float](), dict[str, float]()
    for place, sizes in _placed(run, pattern, depth).places.items():
        name = _stretch(place)
        seen[name] = max(seen.get(name, 0.0), float(sizes.max()) + run.static)
        if place in fit.places:
            said[name] = max(said.get(name, 0.0), float((values @ fit.places[place]).max()) + static)
    return all(abs(said.get(name, 0.0) - size) <= TOLERANCE * size for name, size in seen.items())


def _stretch(place: _Place) -> str:
    batch, action = place[:2]
    return ("fresh", "accumulated")[batch] if action in ("forward", "backward") else action


def _measurement(case: MeasuredCase, depth: int, fit: _Fit) -> MeasuredMemory:
    """The operations that are the peak of their stretch at some shape."""
    grid = _grid(case)
    best: dict[str, tuple[Floats, list[tuple[_Place, int]]]] = {}
    for place, coefficients in fit.places.items():
        sizes = grid @ coefficients
        at, top = sizes.argmax(axis=1), sizes.max(axis=1)
        stretch = _stretch(place)
        own = [(place, int(k)) for k in at]
        if stretch in best:
            before, owners = best[stretch]
            higher = top > before
            own = [new if up else old for up, new, old in zip(higher, own, owners, strict=True)]
            top = np.maximum(top, before)
        best[stretch] = top, own
    moments = {
        (stretch, place, k): Moment(
            stretch=stretch, name=_name(place, depth), terms=tuple(map(float, fit.places[place][:, k]))
        )
        for stretch, (_, owners) in best.items()
        for place, k in owners
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
    """TERMS at the shapes that are looked at for the largest operations."""
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


def _name(place: _Place, depth: int) -> str:
    """backward, layer 28 of 28; forward, logits."""
    _, action, unit, index = place
    if unit == "layer":
        return f"{action}, layer {(index if index >= 0 else depth + index) + 1} of {depth}"
    if action == "step":
        return "optimizer step"
    return f"{action}, {'logits' if unit == 'head' else unit}" if unit else action
