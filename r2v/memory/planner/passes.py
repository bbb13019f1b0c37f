"""One micro-batch through a whole model: its peak memory, beyond the static bytes.

Layers of one kind need the same memory, so each kind is simulated once and the model is a sum over its layers. With
gradient checkpointing only the layers' inputs are saved, and each layer runs forward again before its backward. The
way from the last hidden state to log-probabilities is a segment of its own: with a vocabulary of 128 256 it is the
peak more often than the layers are. In chunks, it is computed a few tokens at a time and again in backward.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from r2v.memory.planner.layers import Layers
from r2v.memory.planner.tape import SegmentProfile, SizedTensor, Tape

PassOutput = Literal["logprobs", "states"]


@dataclass(frozen=True, kw_only=True)
class ModelPass:
    """How a model is run."""

    layers: Layers
    checkpoint: bool = False
    """Layers save their input alone and run again in backward (gradient checkpointing)."""
    chunk: int | None = None
    """Tokens whose logits exist at a time; None: all of them."""
    predicted: int | None = None
    """Tokens whose log-probabilities are computed: those of completions; None: all."""
    top: PassOutput = "logprobs"
    """What is computed from the last layer: log-probabilities of the tokens, or hidden states."""


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The most bytes of one micro-batch at a time, and what runs then."""

    size: float
    at: str


@dataclass(frozen=True, kw_only=True)
class _Segment:
    """A part of the model: the embedding, a layer, or what follows the last layer."""

    name: str
    profile: SegmentProfile
    checkpoint: bool = False
    autocast_copies: float = 0.0
    """Bytes of the copies of weights that torch.autocast caches."""
    gradients: float = 0.0
    """Bytes of the gradients of its weights, and of the largest of them."""
    largest_gradient: float = 0.0


def training_peak(model_pass: ModelPass, *, second: bool = False) -> Peak:
    """The peak of a forward and backward pass. Gradients are counted where they are new (`layers.fresh`).

    `second`: of the second text of two that an encoder reads one by one. In backward the gradients of the other wait
    until this one's reach the same weights, and each sum is a third tensor."""
    segments = _segments(model_pass)
    peaks = []
    waiting = sum(segment.gradients for segment in segments) if second else 0.0
    autocast_copies = 0.0
    live = segments[0].profile.input + model_pass.layers.mask
    for number, segment in enumerate(segments):
        profile = segment.profile
        running = profile.no_grad if segment.checkpoint else profile.forward
        extra = running - profile.input + _named_embedding(segments, number, model_pass.checkpoint)
        peaks.append(Peak(size=live + autocast_copies + extra, at=f"forward, {segment.name}"))
        live += profile.output if segment.checkpoint else profile.after_forward - profile.input
        # Autocast caches its copies until the outermost context ends; those of segments that are not checkpointed
        # are counted in what they save.
        autocast_copies += segment.autocast_copies if segment.checkpoint else 0
    for segment in reversed(segments):
        profile = segment.profile
        # Live already: the gradient of the output, and what the forward pass left.
        start = (profile.input if segment.checkpoint else profile.saved) + profile.output
        running = max(profile.backward, profile.output + profile.recompute if segment.checkpoint else 0)
        running += waiting + (segment.largest_gradient if second else 0)
        if not (second and segment is segments[-1]):  # heads have run before either text's own backward
            peaks.append(Peak(size=live + running - start, at=f"backward, {segment.name}"))
        waiting -= segment.gradients if second else 0
        live += profile.after_backward - start
    return max(peaks, key=lambda peak: peak.size)


def inference_peak(model_pass: ModelPass) -> Peak:
    """The peak of a forward pass without gradients."""
    segments = _segments(model_pass)
    constant = segments[0].profile.input + model_pass.layers.mask
    peaks = [
        Peak(
            size=segment.profile.no_grad + constant + _named_embedding(segments, number, False),
            at=f"forward, {segment.name}",
        )
        for number, segment in enumerate(segments)
    ]
    return max(peaks, key=lambda peak: peak.size)


def _named_embedding(segments: tuple[_Segment, ...], number: int, saved_anyway: bool) -> float:
    """Bytes of the embedding's output, which a local variable of the model's forward keeps alive until the last layer
    has ended."""
    return segments[0].profile.output if 2 <= number < len(segments) - 1 and not saved_anyway else 0


def saved_for_backward(model_pass: ModelPass) -> float:
    """Bytes that a forward pass saves for backward, the last segment (logits) left out."""
    return sum(
        segment.profile.output if segment.checkpoint else segment.profile.after_forward - segment.profile.input
        for segment in _segments(model_pass)[:-1]
    )


@lru_cache(512)  # the strategies of a plan differ in little that a pass depends on
def _segments(model_pass: ModelPass) -> tuple[_Segment, ...]:
    """From the embedding up."""
    layers, kinds = model_pass.layers, model_pass.layers.shape.kinds
    profiles = {(kind, first): layers.layer(kind, first) for kind in set(kinds) for first in (True, False)}
    copies = {kind: sum(layers.cast(matrix) for matrix in layers.shape.linears(kind)) for kind in set(kinds)}
    width = layers.widths.trained if layers.full else 0
    weights = {kind: [width * matrix.parameters for matrix in layers.shape.linears(kind)] for kind in set(kinds)}
    table = width * layers.shape.embedding
    middle = [
        _Segment(
            name=f"layer {number + 1} of {len(kinds)}",
            profile=profiles[kind, number == 0],
            checkpoint=model_pass.checkpoint,
            autocast_copies=float(copies[kind]),
            gradients=sum(weights[kind]),
            largest_gradient=max(weights[kind]),
        )
        for number, kind in enumerate(kinds)
    ]
    if model_pass.top == "states":
        last = _Segment(name="states", profile=_states(layers))
    else:
        last = _Segment(name="logits", profile=_log_probabilities(model_pass))
    first = _Segment(name="embedding", profile=_embedding(layers), gradients=table, largest_gradient=table)
    return (first, *middle, last)


def _embedding(layers: Layers) -> SegmentProfile:
    """The embedding tables. A tied table has the gradient from the head waiting, and their sum is a third tensor."""
    shape = layers.shape
    tape = Tape(fresh=layers.fresh and not shape.tied)
    size, width = layers.count * shape.hidden * layers.widths.stream, layers.widths.trained if layers.full else 0
    ids, table = tape.input(8 * layers.count, requires_grad=False), shape.embedding * width
    x = tape.op(ids, out=size, saves=(ids,), weights=table, back=table if shape.tied else 0)
    if shape.gemma:  # scaled, by a number that is no parameter
        x = tape.op(x, out=size)
    if shape.encoder:
        types = tape.op(ids, out=size, saves=(ids,), weights=shape.token_types * shape.hidden * width)
        places = tape.op(ids, out=size, saves=(ids,), weights=shape.positions * shape.hidden * width)
        x = tape.op(tape.op(x, types, out=size, passes=True), places, out=size, passes=True)
        x = layers.layer_norm(tape, x)
    return tape.profile(ids, x)


def _states(layers: Layers) -> SegmentProfile:
    """One state of each row (a decoder's last one after its norm, an encoder's mean over tokens), and heads on it."""
    tape, shape = Tape(fresh=layers.fresh), layers.shape
    x = tape.input(layers.count * shape.hidden * layers.widths.stream, layers.trains)
    y = tape.op(x, out=x.size) if shape.encoder else layers.norm(tape, x, shape.hidden)
    state = h = tape.op(y, out=layers.rows * shape.hidden * layers.widths.stream)
    outputs: list[SizedTensor] = []
    width = layers.widths.trained if layers.trains else 0
    for matrix in shape.heads_on_top:
        h = tape.op(
            h, out=layers.rows * matrix.outside * layers.widths.stream, saves=(h,), weights=matrix.parameters * width
        )
        if matrix.outside == 1:
            outputs.append(h)
            h = state
    return tape.profile(x, tape.op(*outputs or (state,), out=4))


def _log_probabilities(model_pass: ModelPass) -> SegmentProfile:
    """Last norm, logits, the tokens' own log-probabilities in float32, their mean."""
    layers = model_pass.layers
    shape, n = layers.shape, layers.count
    tape = Tape(fresh=layers.fresh or shape.tied)
    x = tape.input(n * shape.hidden * layers.widths.stream, layers.trains)
    y = layers.norm(tape, x, shape.hidden)
    if model_pass.chunk is None:
        return tape.profile(x, tape.op(_all_logits(layers, tape, y), out=4))
    count = n
    if model_pass.predicted is not None and model_pass.predicted < n:
        count = model_pass.predicted
        y = tape.op(y, out=count * shape.hidden * layers.widths.stream)
    chosen = _logits_in_chunks(layers, tape, y, min(model_pass.chunk, count), count)
    return tape.profile(x, tape.op(chosen, out=4))


def _all_logits(layers: Layers, tape: Tape, y: SizedTensor, chunked: bool = False) -> SizedTensor:
    """By log-softmax and gather, or, where `chunked`, as r2v.hrl.algorithm.logprobs does: the chosen logit less the
    logsumexp, whose kernel copies the logits in forward and twice in backward."""
    shape, n, c = layers.shape, layers.count, layers.widths.compute
    table = shape.embedding * layers.widths.trained if layers.full else 0
    y = tape.op(y, out=n * shape.hidden * c) if layers.widths.stream != c else y
    copy = shape.embedding * c if layers.full and layers.widths.autocast else 0
    logits = tape.op(y, out=n * shape.vocab * c, saves=(y,) if layers.full else (), extra=copy, weights=table)
    if shape.softcap:
        logits = tape.op(tape.op(logits, out=logits.size), out=logits.size, saves_out=True)
        logits = tape.op(logits, out=logits.size)
    wide = logits if c == 4 else tape.op(logits, out=4 * n * shape.vocab)
    if chunked:
        chosen = tape.op(wide, out=4 * n, extra=8 * n)
        total = tape.op(
            wide, out=4 * n, saves=(wide,), saves_out=True, reads=(logits,), temp=wide.size, back=2 * wide.size
        )
        return tape.op(chosen, total, out=4 * n, passes=True)
    logs = tape.op(wide, out=4 * n * shape.vocab, saves_out=True)
    return tape.op(logs, out=4 * n, reads=(logits,), extra=8 * n)


def _logits_in_chunks(layers: Layers, tape: Tape, y: SizedTensor, tokens: int, count: int) -> SizedTensor:
    """Of `count` tokens, `tokens` at a time; each chunk is checkpointed: freed, and computed again in backward."""
    chunk = replace(layers, rows=1, tokens=tokens, fresh=False)
    inner = Tape()
    part = inner.input(tokens * layers.shape.hidden * layers.widths.stream, layers.trains)
    profile = inner.profile(part, _all_logits(chunk, inner, part, chunked=True))
    table = layers.shape.embedding if layers.full else 0
    # The table's gradient from earlier chunks waits in the type it is computed in; a single chunk has no earlier one.
    several = tokens < count
    waiting = table * (layers.widths.compute - layers.widths.trained if several else -layers.widths.trained)
    return tape.op(
        y,
        out=4 * count,
        saves=(y,),
        temp=profile.no_grad,
        weights=table * layers.widths.trained,
        back=max(profile.backward, profile.forward) + waiting,
    )
