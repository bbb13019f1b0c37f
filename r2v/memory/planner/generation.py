"""Generation: the peak memory of making completions, beyond the static bytes.

A batch of prompts is read at once, then a token is added to all rows until they end: the KV cache at its longest, the
logits, and the float64 copies of them that a token is chosen from. Acting stages and rollouts both decode so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from r2v.memory.planner import passes
from r2v.memory.planner.layers import Layers, Widths
from r2v.memory.planner.passes import ModelPass, Peak
from r2v.memory.shapes import Shape

Sampling = Literal["greedy", "sampled", "nucleus"]
_CHOOSING: dict[Sampling, int] = {"greedy": 40, "sampled": 48, "nucleus": 88}
"""Bytes for each token of the vocabulary and row while `r2v.llm.local.decode` chooses, logits aside; float64 is 8.
Greedy: log-probabilities, their rounded twins, and three copies for the entropy. Sampled: the distribution too.
Nucleus: 11 copies while it is cut, those of the log-probabilities and of the rounded ones, the rows that are sampled,
their distribution, its rows that are cut, and of these the ranked ones, their order, the mass before each, what is
kept, zeros, and what is scattered into them."""


@dataclass(frozen=True, kw_only=True)
class GenerationShape:
    """What decides the memory of generation."""

    model: Shape
    widths: Widths
    lora_rank: int
    four_bit: bool
    prompt_tokens: int
    completion_tokens: int
    samples: int
    """Completions of one prompt."""
    sampling: Sampling
    full: bool = False
    """Whether autocast, where there is any, copies the weights: it copies what is trained."""

    @property
    def width(self) -> int:
        """Bytes per number while it computes."""
        return self.widths.compute

    @property
    def tokens(self) -> int:
        """Of a prompt with its completion."""
        return self.prompt_tokens + self.completion_tokens


def reading_peak(shape: GenerationShape, rows: int, tokens: int) -> Peak:
    """One pass over whole texts, and the KV cache that it leaves."""
    layers = Layers(
        shape=shape.model,
        rows=rows,
        tokens=tokens,
        widths=shape.widths,
        full=False,
        rank=shape.lora_rank,
        four_bit=shape.four_bit,
    )
    peak = passes.inference_peak(ModelPass(layers=layers, top="states"))
    return Peak(size=peak.size + read_cache(shape, rows, tokens), at=peak.at)


def _cached_width(shape: GenerationShape) -> int:
    """Bytes per number of the KV cache: under autocast rotated keys stand in the stream's type, values in the
    matrices'."""
    return (shape.widths.stream + shape.width) // 2 if shape.widths.autocast else shape.width


def _copies(shape: GenerationShape) -> tuple[int, int]:
    """Bytes of the copies that autocast keeps to the end of a generation: of the layers' matrices, and of the head."""
    if not (shape.widths.autocast and shape.full):
        return 0, 0
    model = shape.model
    layers = sum(matrix.parameters for kind in model.kinds for matrix in model.linears(kind))
    return layers * shape.width, model.embedding * shape.width


def read_cache(shape: GenerationShape, rows: int, tokens: int) -> float:
    """Sliding layers cut a view from what they have read: all of it stays until the first token is added."""
    model, width = shape.model, _cached_width(shape)
    return rows * (tokens * model.kv_bytes_per_token(width) + model.fixed_cache_entries * width)


def grown_cache(shape: GenerationShape, rows: int) -> float:
    """The KV cache at its longest."""
    model, width = shape.model, _cached_width(shape)
    return rows * (model.kv_bytes(shape.tokens, width) + model.fixed_cache_entries * width)


def choosing(shape: GenerationShape, rows: int) -> float:
    """The logits, those of the rows that go on, and what a token is chosen from."""
    return rows * shape.model.vocab * (2 * shape.width + _CHOOSING[shape.sampling])


def generation_peak(shape: GenerationShape, rows: int) -> Peak:
    """The largest of its peaks, from the prompts to the last token."""
    model, width = shape.model, shape.width
    prompts = -(-rows // shape.samples)
    prompt = reading_peak(shape, prompts, shape.prompt_tokens)
    cache, logits = grown_cache(shape, rows), rows * model.vocab * width
    # The cache of a layer grows by concatenation: its old and its new keys are there together.
    key_width = shape.widths.stream if shape.widths.autocast else width
    keys = rows * shape.tokens * model.kv_heads * model.head_dim * key_width
    layers, head = _copies(shape)
    copied = read_cache(shape, prompts, shape.prompt_tokens) / len(model.kinds) if shape.samples > 1 else 0
    read = read_cache(shape, rows, shape.prompt_tokens)
    peaks = (
        Peak(size=prompt.size + layers, at=f"prompt, {prompt.at}"),
        Peak(size=read + copied + logits + layers + head, at="prompt, a row for each sample"),
        Peak(size=read + choosing(shape, rows) + layers + head, at="first token, chosen"),
        Peak(size=cache + keys + 2 * logits + layers + head, at="last token, cache grows"),
        Peak(size=cache + choosing(shape, rows) + layers + head, at="last token, chosen"),
    )
    return max(peaks, key=lambda peak: peak.size)
