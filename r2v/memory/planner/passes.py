"""One micro-batch through a whole model: the most bytes at a time, beyond what stands there anyway.

Layers of one kind need the same, so each kind is played on paper once and the model is a sum over its layers.
With checkpointing only the layers' inputs are kept, and each layer runs forward again before its backward. The
chain from the last state to log-probabilities is counted for itself: with 128 256 words it is the peak more often
than the layers are. Chunked, it is done a few tokens at a time and again in backward.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from r2v.memory.planner.layers import Layers
from r2v.memory.planner.tape import Paper, Profile, Tape

Top = Literal["logprobs", "states"]
_Segment = tuple[str, Profile, bool, float]


@dataclass(frozen=True, kw_only=True)
class Passage:
    """How a model is run."""

    layers: Layers
    checkpoint: bool = False
    """Layers keep their input alone and run again in backward."""
    chunk: int | None = None
    """Tokens whose logits exist at a time; None: all of them."""
    top: Top = "logprobs"
    """What is wanted of the last layer: log-probabilities of the tokens, or its states."""


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Bytes of one micro-batch at its worst moment, and where that is."""

    size: float
    where: str


def train(passage: Passage) -> Peak:
    """The peak of a forward and backward pass. Gradients are counted where they are new (`layers.fresh`)."""
    segments = _segments(passage)
    best, casts = Peak(size=0, where="start"), 0.0
    live = segments[0][1].entering + passage.layers.mask
    for at, (name, one, again, cast) in enumerate(segments):
        most = (one.silent if again else one.forward) - one.entering + _named(segments, at, passage.checkpoint)
        best = max(best, Peak(size=live + casts + most, where=f"forward, {name}"), key=lambda peak: peak.size)
        live += one.leaving if again else one.keeps - one.entering
        casts += cast if again else 0
    for name, one, again, _ in reversed(segments):
        start = (one.entering if again else one.kept) + one.leaving
        most = max(one.backward, one.leaving + one.again if again else 0)
        best = max(best, Peak(size=live + most - start, where=f"backward, {name}"), key=lambda peak: peak.size)
        live += one.leaves - start
    return best


def silent(passage: Passage) -> Peak:
    """The peak of a forward pass without gradients."""
    segments = _segments(passage)
    still = segments[0][1].entering + passage.layers.mask
    return max(
        (
            Peak(size=one.silent + still + _named(segments, at, False), where=f"forward, {name}")
            for at, (name, one, _, _) in enumerate(segments)
        ),
        key=lambda peak: peak.size,
    )


def _named(segments: list[_Segment], at: int, kept_anyway: bool) -> float:
    """The embedding's output, which the model's forward has a name for until the last layer has ended."""
    return segments[0][1].leaving if 2 <= at < len(segments) - 1 and not kept_anyway else 0


def kept(passage: Passage) -> float:
    """What a forward pass leaves for backward, the chain over the vocabulary left out."""
    return sum(one.leaving if again else one.keeps - one.entering for _, one, again, _ in _segments(passage)[:-1])


def _segments(passage: Passage) -> list[_Segment]:
    """(name, what it needs, whether it is checkpointed, bytes of autocast's copies) from the embedding up."""
    layers, kinds = passage.layers, passage.layers.shape.kinds
    profiles = {(kind, first): layers.layer(kind, first) for kind in set(kinds) for first in (True, False)}
    casts = {kind: sum(layers.cast(one) for one in layers.shape.linears(kind)) for kind in set(kinds)}
    middle = [
        (f"layer {at + 1} of {len(kinds)}", profiles[kind, at == 0], passage.checkpoint, float(casts[kind]))
        for at, kind in enumerate(kinds)
    ]
    top = _states(layers) if passage.top == "states" else _chain(passage)
    return [
        ("embedding", _embedding(layers), False, 0.0),
        *middle,
        ("states" if passage.top == "states" else "logits", top, False, 0.0),
    ]


def _embedding(layers: Layers) -> Profile:
    """Tables. A table that is the head as well has its gradient of the head waiting, and the sum is a third one."""
    shape = layers.shape
    tape = Tape(fresh=layers.fresh and not shape.tied)
    size, width = layers.count * shape.hidden * layers.widths.stream, layers.widths.trained if layers.full else 0
    ids, table = tape.input(8 * layers.count, wants=False), shape.embedding * width
    x = tape.op(ids, out=size, saves=(ids,), weights=table, back=table if shape.tied else 0)
    if shape.encoder:
        types = tape.op(ids, out=size, saves=(ids,), weights=shape.token_types * shape.hidden * width)
        places = tape.op(ids, out=size, saves=(ids,), weights=shape.positions * shape.hidden * width)
        x = tape.op(tape.op(x, types, out=size, passes=True), places, out=size, passes=True)
        x = layers.layer_norm(tape, x)
    return tape.profile(ids, x)


def _states(layers: Layers) -> Profile:
    """One state of each row (a decoder's last one after its norm, an encoder's mean over tokens), and heads on it."""
    tape, shape = Tape(fresh=layers.fresh), layers.shape
    x = tape.input(layers.count * shape.hidden * layers.widths.stream, layers.trains)
    y = tape.op(x, out=x.size) if shape.encoder else layers.norm(tape, x, shape.hidden)
    state = h = tape.op(y, out=layers.rows * shape.hidden * layers.widths.stream)
    ends, width = list[Paper](), layers.widths.trained if layers.trains else 0
    for one in shape.heads_on_top:
        h = tape.op(h, out=layers.rows * one.outside * layers.widths.stream, saves=(h,), weights=one.parameters * width)
        if one.outside == 1:
            ends.append(h)
            h = state
    return tape.profile(x, tape.op(*ends or (state,), out=4))


def _chain(passage: Passage) -> Profile:
    """Last norm, logits, the tokens' own log-probabilities in float32, their mean."""
    layers = passage.layers
    shape, n = layers.shape, layers.count
    tape = Tape(fresh=layers.fresh or shape.tied)
    x = tape.input(n * shape.hidden * layers.widths.stream, layers.trains)
    y = layers.norm(tape, x, shape.hidden)
    tokens = min(passage.chunk or n, n)
    picked = _whole(layers, tape, y) if passage.chunk is None else _chunked(layers, tape, y, tokens)
    return tape.profile(x, tape.op(picked, out=4))


def _whole(layers: Layers, tape: Tape, y: Paper, parts: bool = False) -> Paper:
    """By log-softmax and a choice, or, in `parts`, as r2v.hrl.algorithm.logprobs does: the choice less the
    logsumexp, whose
    kernel takes a copy of the logits for a moment and whose backward two."""
    shape, n, c = layers.shape, layers.count, layers.widths.compute
    table = shape.embedding * layers.widths.trained if layers.full else 0
    y = tape.op(y, out=n * shape.hidden * c) if layers.widths.stream != c else y
    copy = shape.embedding * c if layers.full and layers.widths.autocast else 0
    logits = tape.op(y, out=n * shape.vocab * c, saves=(y,) if layers.full else (), extra=copy, weights=table)
    wide = logits if c == 4 else tape.op(logits, out=4 * n * shape.vocab)
    if parts:
        chosen = tape.op(wide, out=4 * n, extra=8 * n)
        total = tape.op(
            wide, out=4 * n, saves=(wide,), saves_out=True, reads=(logits,), temp=wide.size, back=2 * wide.size
        )
        return tape.op(chosen, total, out=4 * n, passes=True)
    logs = tape.op(wide, out=4 * n * shape.vocab, saves_out=True)
    return tape.op(logs, out=4 * n, reads=(logits,), extra=8 * n)


def _chunked(layers: Layers, tape: Tape, y: Paper, tokens: int) -> Paper:
    """`tokens` at a time, each chunk forgotten and done again in backward."""
    chunk = replace(layers, rows=1, tokens=tokens, fresh=False)
    inner = Tape()
    part = inner.input(tokens * layers.shape.hidden * layers.widths.stream, layers.trains)
    need = inner.profile(part, _whole(chunk, inner, part, parts=True))
    table = layers.shape.embedding if layers.full else 0
    # The table's gradient of the chunks before waits in the type it is computed in; a single chunk has none before.
    several = tokens < layers.count
    waiting = table * (layers.widths.compute - layers.widths.trained if several else -layers.widths.trained)
    return tape.op(
        y,
        out=4 * layers.count,
        saves=(y,),
        temp=need.silent,
        weights=table * layers.widths.trained,
        back=max(need.backward, need.forward) + waiting,
    )
