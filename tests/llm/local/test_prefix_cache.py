"""The prefix cache: fewer tokens are read, and no result changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from r2v.config import Price
from r2v.llm.local.backend import LocalBackend
from r2v.llm.local.decode import Draw, Drawn, generate
from r2v.llm.local.prefill import PASS_OF_A_CPU, PASS_OF_A_GPU
from r2v.llm.local.prefix_cache import BLOCK, PrefixCache
from r2v.llm.types import Request
from r2v.policy.prompt_encoder import Encoder, build_messages
from r2v.randomness import generator
from tests import tiny_models

pytestmark = pytest.mark.numerical

PRICE = Price(input=1.0, output=4.0, seconds_per_call=0, seconds_per_token=0)
SIZES = {
    "vocab_size": 62,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 2,
    "initializer_range": 0.1,
}


def _model(kind: str, dtype: torch.dtype = torch.float64) -> Any:
    torch.manual_seed(3)
    if kind == "hybrid":
        return tiny_models.model(62, dtype=dtype)
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**SIZES)).to(dtype).eval()
    return MistralForCausalLM(MistralConfig(**SIZES, sliding_window=8)).to(dtype).eval()


def _backend(kind: str, dtype: torch.dtype = torch.float64, padding: int | None = None) -> LocalBackend:
    tokenizer = tiny_models.tokenizer()
    encoder = Encoder(tokenizer, max_seq_len=200, reserve=12)
    return LocalBackend(_model(kind, dtype), tokenizer, encoder, name="slm", price=PRICE, max_batch=16, padding=padding)


def _waves(conversations: int = 12, steps: int = 5) -> list[list[Request]]:
    """Return growing conversations, step by step; some diverge from a neighbour at step 2, some ask for several
    samples."""

    def words(*key: int) -> str:
        draw = generator("prefix", *key)
        return " ".join(f"w{draw.randrange(48)}" for _ in range(draw.randint(1, 25)))

    def request(i: int, step: int) -> Request:
        observations = [words(i - i % 2 if past < 2 else i, past) for past in range(step + 1)]
        return Request(
            messages=build_messages(f"open w{i // 2}", observations, ["get w1"] * step),
            key=(i, step),
            num_samples=1 + i % 3,
            temperature=(0.0, 0.9)[i % 3 > 0],
            top_p=0.95,
            max_tokens=6,
        )

    return [[request(i, step) for i in range(conversations)] for step in range(steps)]


@pytest.mark.parametrize("kind", ["hybrid", "llama", "sliding"])
def test_what_was_read_before_changes_no_reply(kind: str) -> None:
    backend = _backend(kind)
    for wave in _waves():
        replies = backend.answer(wave)
        assert replies == backend.answer(wave)
        assert replies[:5] == [_backend(kind).answer([request])[0] for request in wave[:5]]


@pytest.mark.parametrize("padding", [PASS_OF_A_CPU, PASS_OF_A_GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("kind", ["hybrid", "llama"])
def test_in_single_precision_and_the_passes_of_a_gpu_the_tokens_are_those_of_a_cold_reading(
    kind: str, padding: int
) -> None:
    backend = _backend(kind, torch.float32, padding)
    for wave in _waves():
        for reply, cold in zip(backend.answer(wave), _backend(kind, torch.float32).answer(wave), strict=True):
            for sample, other in zip(reply.samples, cold.samples, strict=True):
                assert sample.tokens == other.tokens
                assert sample.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_only_states_that_can_be_cut_are_kept() -> None:
    assert [PrefixCache.supports(_model(kind)) for kind in ("hybrid", "llama", "sliding")] == [True, True, False]


def _run(model: Any, prompts: Sequence[tuple[int, ...]], prefixes: PrefixCache | None) -> list[Drawn]:
    draws = [Draw(prompt=i, key=(), temperature=0, top_p=1, max_tokens=3) for i in range(len(prompts))]
    return generate(model, prompts, draws, end_ids=frozenset(), pad_id=0, prefixes=prefixes)


def _ids(length: int, *key: int) -> tuple[int, ...]:
    draw = generator("ids", *key)
    return tuple(draw.randrange(7, 62) for _ in range(length))


@pytest.mark.parametrize("kind", ["hybrid", "llama"])
@pytest.mark.parametrize("length", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 50])
def test_states_of_every_length_equal_a_cold_reading_to_1e_12(kind: str, length: int) -> None:
    """Whatever is cached, alone or beside rows with a longer or no prefix."""
    model, prefixes, common = _model(kind), PrefixCache(_model(kind)), _ids(length)
    _run(model, [common], prefixes)
    prompts = [common, common + _ids(1, 1), common + _ids(9, 2), common[:5] + _ids(3, 3), _ids(20, 4)]
    cached = [prefixes.lookup(prompt) for prompt in prompts]
    for width in {max(1, len(p) - BLOCK * len(blocks)) for p, blocks in zip(prompts, cached, strict=True)}:
        rows = [i for i, p in enumerate(prompts) if len(p) - BLOCK * len(cached[i]) <= width]
        lengths = [max(0, len(prompts[i]) - width) for i in rows]
        with torch.inference_mode():
            cache = prefixes.cache([cached[i] for i in rows], lengths, width)
            total = width + max(lengths)
            mask = torch.tensor([[0] * (total - len(prompts[i])) + [1] * len(prompts[i]) for i in rows])
            ids = torch.tensor([([0] * width + list(prompts[i]))[-width:] for i in rows])
            warm = model(
                input_ids=ids,
                attention_mask=mask,
                past_key_values=cache,
                position_ids=(mask.cumsum(-1) - 1).clamp_min(0)[:, -width:],
            ).logits[:, -1]
            for row, i in zip(warm, rows, strict=True):
                cold = model(torch.tensor([prompts[i]])).logits[0, -1]
                torch.testing.assert_close(row, cold, rtol=0, atol=1e-12)
    assert _run(model, prompts, prefixes) == _run(model, prompts, None)


def test_the_longest_beginning_is_known_in_blocks() -> None:
    model, prompt = _model("hybrid"), _ids(3 * BLOCK + 5)
    prefixes = PrefixCache(model)
    _run(model, [prompt], prefixes)
    assert len(prefixes.lookup(prompt)) == len(prefixes.lookup(prompt + (7,) * 40)) == 3
    assert len(prefixes.lookup(prompt[: 2 * BLOCK] + _ids(BLOCK, 1))) == 2
    assert prefixes.lookup((*_ids(1, 2), *prompt[1:])) == []


def test_only_what_is_new_goes_through_the_model() -> None:
    model, prompt, read = _model("hybrid"), _ids(100), []
    model.get_input_embeddings().register_forward_hook(lambda _m, inputs, _o: read.append(inputs[0].shape[1]))
    prefixes = PrefixCache(model)
    _run(model, [prompt], prefixes)
    _run(model, [prompt + _ids(20, 1)], prefixes)
    assert read == [100, 1, 1, 120 - 100 // BLOCK * BLOCK, 1, 1]


def test_memory_is_bounded_and_what_was_used_last_stays() -> None:
    model, prompts = _model("hybrid"), [_ids(4 * BLOCK, i) for i in range(6)]
    prefixes = PrefixCache(model)
    _run(model, prompts[:1], prefixes)
    prefixes.max_bytes = 3 * prefixes.size
    for prompt in prompts[1:]:
        assert _run(model, [prompt], prefixes) == _run(model, [prompt], None)
        prefixes.lookup(prompts[0])
        assert prefixes.size <= prefixes.max_bytes
    assert [len(prefixes.lookup(prompt)) for prompt in prompts] == [4, 0, 0, 0, 4, 4]


def test_a_bound_below_one_prompt_changes_no_reply() -> None:
    model, common = _model("hybrid"), _ids(60)
    prefixes = PrefixCache(model, max_bytes=0)
    for tail in range(3):
        prompts = [common + _ids(tail, i) for i in range(3)]
        assert _run(model, prompts, prefixes) == _run(model, prompts, None)
    assert prefixes.size == 0


def test_branches_of_one_prompt_equal_separate_ones() -> None:
    backend, wave = _backend("hybrid"), _waves(steps=4)[-1]
    together = backend.answer([replace(request, num_samples=3, temperature=1.0) for request in wave])
    alone = [_backend("hybrid").answer([replace(r, num_samples=3, temperature=1.0)])[0] for r in wave]
    assert together == alone
