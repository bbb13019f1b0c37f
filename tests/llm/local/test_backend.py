"""The local backend: a reply belongs to its request, and sampling follows its parameters."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from r2v.config import Price, load
from r2v.llm.local.backend import LocalBackend
from r2v.llm.local.decode import Draw, generate
from r2v.llm.sampling import entropy, inverse_cdf, nucleus
from r2v.llm.types import Reply, Request
from r2v.memory.on_device.wave_rows import WaveRows, chosen_rows
from r2v.memory.sizes import GIB
from r2v.policy.prompt_encoder import Encoder, build_messages
from r2v.randomness import generator, uniform
from tests import tiny_models

pytestmark = pytest.mark.numerical

PRICE = Price(input=1.0, output=4.0, seconds_per_call=0, seconds_per_token=0)


def _backend(max_batch: int | WaveRows = 64) -> LocalBackend:
    tokenizer = tiny_models.tokenizer()
    return LocalBackend(
        tiny_models.model(len(tokenizer)),
        tokenizer,
        Encoder(tokenizer, max_seq_len=160, reserve=12),
        name="slm",
        price=PRICE,
        max_batch=max_batch,
    )


def _request(i: int) -> Request:
    draw = generator("test", i)
    steps = draw.randrange(4)
    observations = [" ".join(f"w{draw.randrange(48)}" for _ in range(draw.randint(1, 9))) for _ in range(steps + 1)]
    return Request(
        messages=build_messages(f"open w{i % 48}", observations, ["get w1"] * steps),
        key=(7, i, steps),
        num_samples=1 + i % 3,
        temperature=(0.0, 0.7, 1.5)[i % 3],
        top_p=(1.0, 0.9)[i % 2],
        max_tokens=4 + i % 7,
    )


REQUESTS = [_request(i) for i in range(64)]


@pytest.fixture(scope="module")
def together() -> list[Reply]:
    return _backend().answer(REQUESTS)


@pytest.mark.parametrize("max_batch", [1, 7, 64])
def test_company_and_order_change_no_reply(max_batch: int, together: list[Reply]) -> None:
    order = list(range(64))
    generator("order").shuffle(order)
    shuffled = _backend(max_batch).answer([REQUESTS[i] for i in order])
    assert [shuffled[order.index(i)] for i in range(64)] == together


@pytest.fixture
def own_objects() -> Iterator[None]:
    """What other tests have left is no part of the collections that a failed step begins: they take seconds with it."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("own_objects")
def test_a_wave_chosen_for_more_memory_than_there_is_is_repeated_in_halves(
    together: list[Reply], caplog: pytest.LogCaptureFixture
) -> None:
    """A pass of more than 20 rows runs out of memory, as on a GPU; 40 rows seemed to fit."""
    config = load(None)
    rows = chosen_rows(config.rollout, config.policy, config.inference, (0.6 * GIB, 8 * GIB))
    backend, chosen = _backend(rows), rows.most

    def runs_out(module: object, arguments: object, named: dict[str, torch.Tensor]) -> None:
        if len(named["input_ids"]) > 20:
            raise torch.OutOfMemoryError("CUDA out of memory")

    backend.model.register_forward_pre_hook(runs_out, with_kwargs=True)
    assert backend.answer(REQUESTS) == together
    assert 10 < rows.most <= 20 < chosen == backend.max_batch
    assert all(
        "out of GPU memory, repeating the step: phase=decoder, slm" in one.message
        for one in caplog.records
        if one.levelname == "WARNING"
    )


def test_alone_equals_together(together: list[Reply]) -> None:
    backend = _backend()
    assert [backend.answer([request])[0] for request in REQUESTS[:12]] == together[:12]


def test_padded_prefill_equals_unpadded_to_1e_12() -> None:
    model, ids = tiny_models.model(55), [[5 + (i * j) % 50 for i in range(3 + 5 * j)] for j in range(1, 6)]
    width = max(map(len, ids))
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in ids])
    padded = torch.tensor([[0] * (width - len(p)) + p for p in ids])
    with torch.inference_mode():
        batch = model(input_ids=padded, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp_min(0)).logits[
            :, -1
        ]
        for row, prompt in enumerate(ids):
            torch.testing.assert_close(batch[row], model(torch.tensor([prompt])).logits[0, -1], rtol=0, atol=1e-12)


def test_cached_decoding_equals_running_the_whole_text_again() -> None:
    model, prompt = tiny_models.model(55), [5, 9, 11, 30]
    drawn = generate(
        model, [prompt], [Draw(prompt=0, key=(), temperature=0, top_p=1, max_tokens=9)], end_ids=frozenset(), pad_id=0
    )[0]
    ids = list(prompt)
    for token, logprob, spread in zip(drawn.tokens, drawn.logprobs, drawn.entropies, strict=True):
        with torch.inference_mode():
            row = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        assert token == int(row.argmax())
        assert logprob == pytest.approx(float(row[token]), abs=1e-6)
        assert spread == pytest.approx(-float((row.exp() * row).sum()), abs=1e-6)
        ids.append(token)


def test_shared_prefix_equals_separate_prompts() -> None:
    backend, request = _backend(), replace(REQUESTS[4], num_samples=5, temperature=1.0)
    shared = backend.answer([request])[0]
    apart = [backend.answer([replace(request, num_samples=k + 1)])[0].samples[k] for k in range(5)]
    assert list(shared.samples) == apart
    assert len({sample.text for sample in shared.samples}) > 1


def test_temperature_0_gives_equal_samples() -> None:
    reply = _backend().answer([replace(REQUESTS[0], num_samples=4, temperature=0.0)])[0]
    assert len(reply.samples) == 4 and len(set(reply.samples)) == 1


def test_usage_counts_the_prompt_once_and_every_sample() -> None:
    backend = _backend()
    request = replace(REQUESTS[2], num_samples=3, temperature=1.0)
    reply = backend.answer([request])[0]
    tokens_in, tokens_out = len(backend.encode(request.messages)), sum(len(s.tokens) for s in reply.samples)
    assert (reply.usage.tokens_in, reply.usage.tokens_out) == (tokens_in, tokens_out)
    assert reply.usage.cost_usd == pytest.approx((tokens_in * 1.0 + tokens_out * 4.0) / 1e6)
    assert all(len(s.tokens) == len(s.logprobs) == len(s.entropies) for s in reply.samples)
    assert all((s.finish_reason == "stop") == (s.tokens[-1] == "<eos>") for s in reply.samples)
    assert all("<eos>" not in s.text for s in reply.samples)


def test_entropy_of_four_equal_chances() -> None:
    assert float(entropy(torch.tensor([0.25] * 4, dtype=torch.float64).log())) == pytest.approx(1.386294, abs=1e-6)
    assert float(entropy(torch.tensor([0.0, -math.inf], dtype=torch.float64))) == 0.0


def _reference_nucleus(probabilities: list[float], temperature: float, top_p: float) -> list[float]:
    """Return the smallest set of likeliest tokens (ties by id) whose mass reaches top_p, by brute force."""
    powered = [p ** (1 / temperature) for p in probabilities]
    tempered = [p / sum(powered) for p in powered]
    members: list[int] = []
    for token in sorted(range(len(tempered)), key=lambda t: (-tempered[t], t)):
        if top_p < 1 and members and sum(tempered[t] for t in members) >= top_p - 1e-9:
            break
        members.append(token)
    mass = sum(tempered[t] for t in members)
    return [tempered[t] / mass if t in members else 0.0 for t in range(len(tempered))]


@pytest.mark.parametrize("top_p", [0.0, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_nucleus_equals_brute_force(temperature: float, top_p: float) -> None:
    draw = generator("nucleus")
    rows = [[draw.random() ** 3 for _ in range(9)] for _ in range(20)] + [[0.25] * 4 + [0.0] * 5]
    rows = [[p / sum(row) for p in row] for row in rows]
    table = torch.tensor(rows, dtype=torch.float64)
    columns = torch.full((len(rows),), temperature, dtype=torch.float64), torch.full((len(rows),), top_p).double()
    cut = list(range(len(rows))) if top_p < 1 else []
    expected = torch.tensor([_reference_nucleus(row, temperature, top_p) for row in rows], dtype=torch.float64)
    torch.testing.assert_close(nucleus(table.log(), *columns, cut), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("scale", [0.0, 0.5, 6.0])
def test_a_large_vocabulary_is_cut_as_if_it_were_sorted(scale: float) -> None:
    """A nucleus of all tokens, of most, and of a few; many are equally likely, and the first by id stay."""
    draw = generator(f"vocabulary {scale}")
    logits = torch.tensor(
        [[round(draw.gauss() * scale, 1) for _ in range(1000)] for _ in range(4)], dtype=torch.float64
    )
    top_p = torch.tensor([0.001, 0.5, 0.95, 0.999], dtype=torch.float64)
    tempered = torch.softmax(logits, dim=-1)
    ranked, order = tempered.sort(dim=-1, descending=True, stable=True)
    retained = torch.where(ranked.cumsum(dim=-1) - ranked < top_p[:, None] - 1e-9, ranked, 0.0)
    retained[:, 0] = ranked[:, 0]
    expected = torch.zeros_like(tempered).scatter(-1, order, retained)
    cut = nucleus(logits, torch.ones(4, dtype=torch.float64), top_p, range(4))
    assert torch.equal(cut, expected / expected.sum(dim=-1, keepdim=True))


def test_inverse_cdf_slices_in_order_of_token_id() -> None:
    row = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0], dtype=torch.float64)
    points = [0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-53]
    drawn = inverse_cdf(row.expand(len(points), -1), torch.tensor(points, dtype=torch.float64))
    assert drawn.tolist() == [1, 1, 3, 3, 4, 4]


def test_draws_follow_the_keyed_uniform() -> None:
    """First tokens over 600 keys: frequencies within 4 sigma of the model's own distribution."""
    model, prompt, n = tiny_models.model(55), [5, 9, 11, 30], 600
    draws = [Draw(prompt=0, key=("k", k), temperature=1.0, top_p=1.0, max_tokens=1) for k in range(n)]
    first = [d.tokens[0] for d in generate(model, [prompt], draws, end_ids=frozenset(), pad_id=0)]
    with torch.inference_mode():
        expected = model(torch.tensor([prompt])).logits[0, -1].softmax(-1)
    edges = expected.cumsum(-1)
    assert first == [int(torch.searchsorted(edges, uniform("k", k, 0), right=True)) for k in range(n)]
    for token in range(55):
        p = float(expected[token])
        assert abs(first.count(token) - n * p) <= 4 * math.sqrt(n * p * (1 - p)) + 1
