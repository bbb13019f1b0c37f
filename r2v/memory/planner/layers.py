"""Layers: the operations of a transformer's layers, as transformers 5 and peft run them, recorded on a `Tape`.

Widths: weights may be stored in one type and computed in another (`mixed`: float32 computed in bfloat16, by
torch.autocast). The input of a frozen matrix is not saved for backward; that of a trained one or of an adapter is.
Every rule here but those of packed matrices is tested against `r2v.memory.tracker.tracker`, which counts the
libraries' own operations. Dropout is off.
"""

from __future__ import annotations

from dataclasses import dataclass

from r2v.memory.families import LayerKind
from r2v.memory.planner.state import Precision
from r2v.memory.planner.tape import SegmentProfile, SizedTensor, Tape
from r2v.memory.shapes import LinearShape, Shape


@dataclass(frozen=True, kw_only=True)
class Widths:
    """Bytes per number: of the residual stream between layers, inside matrices, and of what is trained."""

    stream: int
    compute: int
    trained: int
    autocast: bool = False
    """torch.autocast casts the inputs of matrices, and trained matrices themselves, to `compute`."""


def widths_of(precision: Precision, *, adapters: bool, autocast: bool, four_bit: bool = False) -> Widths:
    """By precision, and whether adapters are what is trained: `mixed` is a frozen bfloat16 base under float32 adapters,
    or float32 weights; `autocast` says that its matrices multiply in bfloat16. With a 4-bit base everything else is
    float32 (peft.prepare_model_for_kbit_training), and so is what the packed matrices hand on."""
    if four_bit:
        return Widths(stream=4, compute=4, trained=4)
    if precision == "mixed" and (adapters or autocast):
        return Widths(stream=2 if adapters else 4, compute=2, trained=4, autocast=autocast)
    width = 2 if precision == "bfloat16" else 4
    return Widths(stream=width, compute=width, trained=width)


@dataclass(frozen=True, kw_only=True)
class Layers:
    """A model's layers on a micro-batch of `rows` sequences of `tokens` tokens each."""

    shape: Shape
    rows: int
    tokens: int
    widths: Widths
    full: bool
    """All weights are trained."""
    rank: int
    """LoRA rank of the adapters that are trained; 0: none."""
    fresh: bool = False
    """Whether this is the first micro-batch of an update: weights have no gradients yet."""
    four_bit: bool = False

    @property
    def count(self) -> int:
        """Tokens of the whole micro-batch."""
        return self.rows * self.tokens

    @property
    def mask(self) -> int:
        """Bytes of the attention masks that layers share, one for each pair of tokens of a sequence: one mask, or two
        where some layers slide; written-out attention adds theirs, as numbers."""
        kinds = 2 if 0 < self.shape.sliding < len(self.shape.kinds) else 1
        return kinds * self.rows * self.tokens**2 * (self.widths.stream if self.shape.softcap else 1)

    @property
    def trains(self) -> bool:
        """Whether anything here is trained."""
        return self.full or self.rank > 0

    def layer(self, kind: LayerKind, first: bool = False) -> SegmentProfile:
        """One layer. The input of the first one requires no gradient unless the embedding is trained."""
        tape = Tape(fresh=self.fresh)
        x = tape.input(self.count * self.shape.hidden * self.widths.stream, self.full or (self.trains and not first))
        named = {matrix.name: matrix for matrix in self.shape.linears(kind)}
        y = self._encoder(tape, x, named) if kind == "encoder" else self._decoder(tape, x, named, kind)
        return tape.profile(x, y, held=True)

    def _decoder(self, tape: Tape, x: SizedTensor, named: dict[str, LinearShape], kind: LayerKind) -> SizedTensor:
        inner = self.norm(tape, x, self.shape.hidden)
        mixed = self._conv(tape, inner, named) if kind == "conv" else self._attention(tape, inner, named)
        x = tape.op(x, self._after(tape, mixed), out=x.size, passes=True)
        inner = self.norm(tape, x, self.shape.hidden)
        if kind == "mixture":
            down = self._mixture(tape, inner, named)
        else:
            down = self._linear(tape, self._gated(tape, inner, named), named["down"])
        return tape.op(x, self._after(tape, down), out=x.size, passes=True)

    def _after(self, tape: Tape, x: SizedTensor) -> SizedTensor:
        """The norm behind attention and feed-forward, in families that have one."""
        return self.norm(tape, x, self.shape.hidden) if self.shape.post_norms else x

    def _gated(self, tape: Tape, inner: SizedTensor, named: dict[str, LinearShape]) -> SizedTensor:
        """act(gate) * up; where one matrix makes both, they are views of its output."""
        if self.shape.fused:
            both = self._linear(tape, inner, named["gate_up"])
            act = tape.op(both, out=both.size / 2, saves=(both,))
            return tape.op(both, act, out=act.size, saves=(both, act), reads=(inner,))
        gate = self._linear(tape, inner, named["gate"])
        act = tape.op(gate, out=gate.size, saves=(gate,))
        up = self._linear(tape, inner, named["up"])
        return tape.op(act, up, out=up.size, saves=(act, up), reads=(inner,))

    def _mixture(self, tape: Tape, x: SizedTensor, named: dict[str, LinearShape]) -> SizedTensor:
        """The experts, as one grouped multiplication over copies of each token, one for each expert that it is sent
        to (transformers.integrations.moe). The router's probabilities are float32."""
        shape, c = self.shape, self.widths.compute
        copies = self.count * shape.experts_per_token
        logits = self._plain(tape, x, named["router"], self.count)
        chosen = tape.op(logits, out=4 * self.count * shape.experts, saves_out=True)
        weights = tape.op(chosen, out=copies * c, extra=8 * copies)
        sent = tape.op(x, out=copies * shape.hidden * c, reads=(x,), extra=8 * copies)
        both = self._plain(tape, sent, named["experts gate_up"], copies)
        act = tape.op(both, out=both.size / 2, saves=(both,))
        product = tape.op(both, act, out=act.size, saves=(both, act), reads=(logits,))
        down = self._plain(tape, product, named["experts down"], copies)
        weighted = tape.op(down, weights, out=down.size, saves=(down, weights))
        # Variables of the function that runs the experts keep what they name alive to its end.
        restored = tape.op(weighted, out=weighted.size, reads=(sent, down))
        return tape.op(restored, out=x.size, reads=(x, sent, down, weighted))

    def _plain(self, tape: Tape, x: SizedTensor, matrix: LinearShape, rows: int) -> SizedTensor:
        """A product with a parameter that is no module of its own: never packed; adapters are added to a copy of it,
        which is kept for backward and has a gradient of its own there."""
        c, rank = self.widths.compute, self.rank
        trained = matrix.parameters if self.full else matrix.lora_parameters(rank)
        copy = self.cast(matrix) if self.full else matrix.weights * c * bool(rank)
        weights = trained * self.widths.trained
        saves = (x,) if self.trains else ()
        back = matrix.weights * c if rank else 0
        return tape.op(x, out=rows * matrix.outside * c, saves=saves, weights=weights, extra=copy, back=back)

    def _encoder(self, tape: Tape, x: SizedTensor, named: dict[str, LinearShape]) -> SizedTensor:
        q, k, v = (self._linear(tape, x, named[name]) for name in "qkv")
        out = self._linear(tape, self._sdpa(tape, q, k, v), named["o"])
        middle = self.layer_norm(tape, tape.op(out, x, out=x.size, passes=True))
        up = self._linear(tape, middle, named["up"])
        act = tape.op(up, out=up.size, saves=(up,))
        down = self._linear(tape, act, named["down"])
        return self.layer_norm(tape, tape.op(down, middle, out=middle.size, passes=True))

    def _attention(self, tape: Tape, x: SizedTensor, named: dict[str, LinearShape]) -> SizedTensor:
        if self.shape.fused:  # three views of one output, which the values keep alive
            v = self._linear(tape, x, named["qkv"])
            width = self.count * self.shape.head_dim * self.widths.compute
            q, k = (self._rotary(tape, v, heads * width) for heads in (self.shape.heads, self.shape.kv_heads))
            mixed = self._sdpa(tape, q, k, v)
            # Phi's rotary embedding concatenates, so heads come first in memory and are put back in a copy.
            return self._linear(tape, tape.op(mixed, out=mixed.size), named["o"])
        q, k, v = (self._linear(tape, x, named[name]) for name in "qkv")
        if self.shape.qk_norm:
            q, k = (self.norm(tape, one, self.shape.head_dim, self.widths.compute) for one in (q, k))
        q, k = self._rotary(tape, q, q.size), self._rotary(tape, k, k.size)
        return self._linear(tape, self._sdpa(tape, q, k, v), named["o"])

    def _rotary(self, tape: Tape, x: SizedTensor, size: float) -> SizedTensor:
        """x * cos + rotate_half(x) * sin of the `size` bytes of x that are turned; under autocast the tables stand in
        the stream's type, and so the result."""
        wide = size / self.widths.compute * self.widths.stream
        plain = tape.op(x, out=wide)
        turned = tape.op(x, out=size, temp=size / 2)
        return tape.op(plain, tape.op(turned, out=wide), out=wide, passes=True)

    def _sdpa(self, tape: Tape, q: SizedTensor, k: SizedTensor, v: SizedTensor) -> SizedTensor:
        """Scaled dot-product attention as a fused kernel: it saves its inputs, its output and one number per head and
        token, never tokens x tokens per head. Sequences of unequal length bring a mask, of which each layer saves a
        copy in its own type; keys and values are repeated for every head (transformers' sdpa_attention_forward)."""
        heads, shape, c = self.count * self.shape.heads, self.shape, self.widths.compute
        if shape.softcap:
            return self._written_out(tape, q, k, v)
        if 1 < shape.kv_heads < shape.heads:
            k = tape.op(k, out=k.size * shape.heads / shape.kv_heads)
            v = tape.op(v, out=heads * shape.head_dim * c)
        wide = heads * shape.head_dim * c
        q, k = (self._cast(tape, one, heads * shape.head_dim) if self.widths.stream != c else one for one in (q, k))
        mask = self.rows * self.tokens**2 * c
        # A single key-value head is repeated by a view: free in forward, but its gradient is made for every head and
        # then summed.
        return tape.op(
            q,
            k,
            v,
            out=wide,
            saves=(q, k, v),
            saves_out=True,
            extra=4 * heads + mask,
            back=sum(max(0, wide - one.size) for one in (k, v)),
        )

    def _written_out(self, tape: Tape, q: SizedTensor, k: SizedTensor, v: SizedTensor) -> SizedTensor:
        """Attention in single steps, which capped scores ask for: scores and probabilities of every head and pair of
        tokens are saved, the probabilities in float32 too (modeling_gemma2.eager_attention_forward)."""
        shape, c = self.shape, self.widths.compute
        wide, pairs = self.count * shape.heads * shape.head_dim * c, self.count * self.tokens * shape.heads
        if shape.kv_heads < shape.heads:
            k, v = (tape.op(one, out=wide) for one in (k, v))
        scores = tape.op(q, k, out=pairs * c, saves=(q, k))
        capped = tape.op(tape.op(tape.op(scores, out=scores.size), out=scores.size), out=scores.size, saves_out=True)
        masked = tape.op(tape.op(capped, out=scores.size), out=scores.size, passes=True)
        weights = tape.op(masked, out=4 * pairs, saves_out=True, temp=0 if c == 4 else 4 * pairs)
        weights = weights if c == 4 else tape.op(weights, out=pairs * c)
        return tape.op(tape.op(weights, v, out=wide, saves=(weights, v)), out=wide)

    def _cast(self, tape: Tape, x: SizedTensor, numbers: float) -> SizedTensor:
        size = numbers * self.widths.compute
        return x if x.size == size else tape.op(x, out=size)

    def _conv(self, tape: Tape, x: SizedTensor, named: dict[str, LinearShape]) -> SizedTensor:
        """B * x, a depthwise convolution over time, C * that; the three come from one matrix."""
        three = self._linear(tape, x, named["in"])
        size = three.size / 3
        gated = tape.op(three, out=size, saves=(three,))
        padded = size * (self.tokens + self.shape.conv_kernel - 1) / self.tokens
        kernel = self.shape.conv_kernel * self.shape.hidden * self.widths.trained if self.full else 0
        mixed = tape.op(gated, out=padded, saves=(gated,), weights=kernel)
        product = tape.op(three, mixed, out=size, saves=(three, mixed))
        return self._linear(tape, tape.op(product, out=size), named["out"])

    def norm(self, tape: Tape, x: SizedTensor, width: int, bytes_: int = 0) -> SizedTensor:
        """RMSNorm: in float32 whatever comes in, back to what came in, times the weight; Gemma multiplies first."""
        numbers = x.size / (bytes_ or self.widths.stream)
        wide = x if x.size == 4 * numbers else tape.op(x, out=4 * numbers)
        square = tape.op(wide, out=4 * numbers, saves=(wide,), back=8 * numbers)
        root = tape.op(square, out=4 * numbers / width, saves_out=True)
        scaled = tape.op(wide, root, out=4 * numbers, saves=(wide, root), back=4 * numbers)
        weights = width * self.widths.trained if self.full else 0
        if self.shape.gemma:
            scaled = tape.op(scaled, out=4 * numbers, saves=(scaled,) if self.full else (), weights=weights)
            return scaled if x.size == 4 * numbers else tape.op(scaled, out=x.size)
        back = scaled if x.size == 4 * numbers else tape.op(scaled, out=x.size)
        return tape.op(back, out=back.size, saves=(back,) if self.full else (), weights=weights)

    def layer_norm(self, tape: Tape, x: SizedTensor) -> SizedTensor:
        weights = 2 * self.shape.hidden * self.widths.trained if self.full else 0
        return tape.op(x, out=x.size, saves=(x,), extra=8 * self.count, weights=weights)

    def _linear(self, tape: Tape, x: SizedTensor, matrix: LinearShape) -> SizedTensor:
        n, c = self.count, self.widths.compute
        x_in = self._cast(tape, x, n * matrix.inside) if not self.rank else x
        # nf4 matrices are unpacked to bfloat16, and multiply what is cast to it.
        unpacked = 2 * (matrix.weights + n * (matrix.inside + matrix.outside)) if self.four_bit else 0
        result = tape.op(
            x_in,
            out=n * matrix.outside * c,
            saves=(x_in,) if self.full else (),
            temp=unpacked,
            back=unpacked,
            extra=self.cast(matrix) if self.full else 0,
            weights=matrix.parameters * self.widths.trained if self.full else 0,
        )
        return self._adapted(tape, x, result, matrix) if self.rank else result

    def cast(self, matrix: LinearShape) -> int:
        """Bytes of the copies that autocast makes of the trained weights of a matrix, and caches."""
        trained = matrix.parameters if self.full else matrix.lora_parameters(self.rank)
        return trained * self.widths.compute if self.widths.autocast else 0

    def _adapted(self, tape: Tape, x: SizedTensor, result: SizedTensor, matrix: LinearShape) -> SizedTensor:
        """peft's lora.Linear: the input in the adapter's type, B(A(x)) * scale, and back to the matrix's type."""
        n, a = self.count, self.widths.trained
        if self.four_bit:  # peft clones the output of a packed matrix
            result = tape.op(result, out=result.size, passes=True)
        wide_x = x if x.size == n * matrix.inside * a else tape.op(x, out=n * matrix.inside * a)
        c = self.widths.compute if self.widths.autocast else a
        x_in = wide_x if c == a else tape.op(wide_x, out=n * matrix.inside * c)
        copied = c if self.widths.autocast else 0
        narrow = tape.op(
            x_in,
            out=n * self.rank * c,
            saves=(x_in,),
            weights=self.rank * matrix.inside * a,
            extra=self.rank * matrix.inside * copied,
        )
        wide = tape.op(
            narrow,
            out=n * matrix.outside * c,
            saves=(narrow,),
            weights=self.rank * matrix.outside * a,
            extra=self.rank * matrix.outside * copied,
        )
        scaled = tape.op(wide, out=wide.size, extra=4)  # the scale itself is saved, last of all in a layer
        total = tape.op(result, scaled, out=max(result.size, scaled.size), reads=(x, wide_x), passes=True)
        return total if total.size == result.size else tape.op(total, out=result.size)
