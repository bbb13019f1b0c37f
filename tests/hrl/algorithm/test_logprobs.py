"""Log-probabilities do not depend on padding, chunks or micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from r2v.errors import InputError, UsageError
from r2v.hrl.algorithm.logprobs import (
    completion_logprobs,
    pad_sequences,
    require_known_logits,
    token_logprobs,
)
from r2v.hrl.algorithm.losses import policy_loss, token_weights
from r2v.policy.precision import use_float64_layers
from tests import tiny_models

pytestmark = pytest.mark.numerical

VOCABULARY = 96
PROMPTS = [list(range(5, 5 + n)) for n in (3, 11, 7, 1, 20, 5, 9, 2)]
COMPLETIONS = [[40 + (3 * n + k) % 50 for k in range(n)] + [2] for n in (4, 1, 9, 6, 2, 0, 12, 5)]
ADVANTAGES = torch.tensor([1.0, -0.5, 2.0, 0.3, -1.0, 0.7, 0.1, -2.0])


SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.1,
}


def llama() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SHAPE)).eval()


def lfm2() -> Any:
    """Return a tiny LFM2 in which token 0, the pad, is a word like any other."""
    model = tiny_models.model(VOCABULARY, 0, torch.float32)
    model.get_input_embeddings().weight.data[0] = 0.3
    return model


def adapted() -> Any:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    return get_peft_model(
        llama(), LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
    )


def doubled(model: Any) -> Any:
    model = model.double()
    use_float64_layers(model)
    return model


MODELS = {
    "llama": llama,
    "lfm2": lfm2,
    "lora": adapted,
    "llama in float64": lambda: doubled(llama()),
    "lfm2 in float64": lambda: doubled(lfm2()),
}


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    near = 1e-6 if ours.dtype == torch.float32 else 1e-13
    torch.testing.assert_close(ours, theirs, rtol=near, atol=near)


def flat(model: Any, rows: Sequence[int] = range(8), chunk: int = 1024, again: bool = False) -> Tensor:
    """Return the log-probabilities of all completion tokens of some rows, in order."""
    laid = pad_sequences([PROMPTS[i] for i in rows], [COMPLETIONS[i] for i in rows])
    logp = completion_logprobs(model, laid, chunk, gradient_checkpointing=again)
    assert logp[~laid.completion].eq(0.0).all()
    return logp[laid.completion]


@pytest.mark.parametrize("kind", MODELS)
def test_padding_or_none_is_the_same(kind: str) -> None:
    model = MODELS[kind]()
    with torch.no_grad():
        alone = torch.cat([flat(model, [i]) for i in range(8)])
        assert len(alone) == sum(map(len, COMPLETIONS))
        assert_same(flat(model), alone)


@pytest.mark.parametrize("kind", MODELS)
def test_it_is_what_the_model_itself_says(kind: str) -> None:
    model = MODELS[kind]()
    with torch.no_grad():
        for prompt, completion, got in zip(
            PROMPTS, COMPLETIONS, flat(model).split([len(c) for c in COMPLETIONS]), strict=True
        ):
            logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
            wanted = logits.log_softmax(-1).gather(-1, torch.tensor(completion)[:, None])[:, 0]
            assert_same(got, wanted)
            assert float(wanted.std(correction=0)) > 0 or len(completion) == 1


def gradients(model: Any, cuts: Sequence[Sequence[int]], chunk: int = 1024, again: bool = False) -> list[Tensor]:
    """Return the gradients of one update made of micro-batches; the denominator is the whole update's."""
    whole = pad_sequences(PROMPTS, COMPLETIONS).completion.sum()
    model.zero_grad()
    for rows in cuts:
        laid = pad_sequences([PROMPTS[i] for i in rows], [COMPLETIONS[i] for i in rows])
        logp = completion_logprobs(model, laid, chunk, gradient_checkpointing=again)
        policy_loss(logp, token_weights(ADVANTAGES[list(rows)]), laid.completion, whole).backward()
    return [tensor.grad.clone() for tensor in model.parameters() if tensor.grad is not None]


@pytest.mark.parametrize("kind", MODELS)
def test_eight_micro_batches_of_one_are_one_of_eight(kind: str) -> None:
    model = MODELS[kind]()
    whole = gradients(model, [range(8)])
    assert max(float(one.abs().max()) for one in whole) > 1e-2
    for cuts in ([[i] for i in range(8)], [[0, 1, 2], [3, 4, 5, 6, 7]]):
        for ours, theirs in zip(gradients(model, cuts), whole, strict=True):
            assert_same(ours, theirs)


@pytest.mark.parametrize("chunk", [1, 7])
def test_chunks_change_neither_values_nor_gradients(chunk: int) -> None:
    model = llama()
    assert_same(flat(model, chunk=chunk), flat(model))
    for ours, theirs in zip(gradients(model, [range(8)], chunk), gradients(model, [range(8)]), strict=True):
        assert_same(ours, theirs)


def test_no_more_logits_exist_than_a_chunk() -> None:
    """Forward and backward: the longest tensor whose last dimension is the vocabulary."""

    class Longest(TorchDispatchMode):
        rows = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = function(*args, **(kwargs or {}))
            if isinstance(result, Tensor) and result.dim() and result.shape[-1] == VOCABULARY:
                self.rows = max(self.rows, result.numel() // VOCABULARY)
            return result

    model = llama()
    model.get_output_embeddings().weight.requires_grad_(False)  # its gradient is a vocabulary long too
    model.get_input_embeddings().weight.requires_grad_(False)
    assert model.config.tie_word_embeddings is False
    with Longest() as longest:
        gradients(model, [range(8)], chunk=5)
    assert longest.rows <= max(5, model.config.hidden_size)
    with Longest() as naive:
        gradients(model, [range(8)])
    assert naive.rows == sum(map(len, COMPLETIONS)) > max(5, model.config.hidden_size)


def test_logits_are_not_kept_for_the_way_back() -> None:
    model, kept = llama(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        flat(model, chunk=5)
    head = model.get_output_embeddings().weight
    assert len(kept) > 20
    assert [
        tensor.shape for tensor in kept if tensor.shape[-1:] == (VOCABULARY,) and tensor.data_ptr() != head.data_ptr()
    ] == []


def test_a_huge_gap_is_finite_and_can_be_learnt_from() -> None:
    logits = torch.tensor([[0.0, -120.0]], requires_grad=True)
    got = token_logprobs(logits, torch.tensor([1]))
    assert got.item() == -120.0
    assert token_logprobs(logits.detach() + 200, torch.tensor([1])).item() == -120.0
    got.sum().backward()
    assert logits.grad is not None and logits.grad.tolist() == [[-1.0, 1.0]]
    assert torch.softmax(logits, -1).log()[0, 1].item() == float("-inf"), "what ArCHer's code does"
    assert token_logprobs(logits.detach().bfloat16(), torch.tensor([1])).dtype == torch.float32
    assert token_logprobs(logits.detach().double(), torch.tensor([1])).dtype == torch.float64


def test_a_prompt_is_followed_by_its_completion_without_a_gap() -> None:
    batch = pad_sequences([[5], [6, 7, 8]], [[9, 2], [2]])
    assert batch.ids.tolist() == [[5, 9, 2, 0], [6, 7, 8, 2]]
    assert batch.positions.tolist() == [[0, 1, 2, 2], [0, 1, 2, 3]]
    assert batch.completion.long().tolist() == [[0, 1, 1, 0], [0, 0, 0, 1]]
    assert batch.attention.long().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    with pytest.raises(InputError, match="sequence 1: its prompt has no tokens"):
        pad_sequences([[5], []], [[2], [2]])


@pytest.mark.parametrize(
    ("family", "setting"),
    [
        ("gemma2", {"final_logit_softcapping": 3.0, "head_dim": 8}),
        ("cohere", {"logit_scale": 0.0625}),
        ("granite", {"logits_scaling": 7.0}),
    ],
)
def test_logits_that_a_family_rescales_are_rescaled_here_too(family: str, setting: dict[str, Any]) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**SHAPE, **setting})
    model = AutoModelForCausalLM.from_config(config).double().eval()
    require_known_logits(model)
    batch = pad_sequences(PROMPTS, COMPLETIONS)
    theirs = model(input_ids=batch.ids, attention_mask=batch.attention.long()).logits.log_softmax(-1)
    expected = theirs[:, :-1].gather(-1, batch.ids[:, 1:, None])[..., 0]
    ours = completion_logprobs(model, batch, chunk=5)[:, 1:]
    mask = batch.completion[:, 1:]
    # gemma's and cohere's norms round to float32 in a float64 model too
    torch.testing.assert_close(ours[mask].double(), expected[mask], rtol=1e-5, atol=1e-5)


def test_a_model_that_makes_its_logits_in_a_way_of_its_own_is_refused() -> None:
    model = llama()
    require_known_logits(model)
    forward = model.forward
    model.forward = lambda *args, **kwargs: _halved(forward(*args, **kwargs))
    with pytest.raises(UsageError, match="this llama model rescales its logits in a way that"):
        require_known_logits(model)


def _halved(output: Any) -> Any:
    output.logits = output.logits / 2
    return output


@pytest.mark.parametrize("kind", MODELS)
def test_layers_that_run_again_change_no_bit_and_keep_less(kind: str) -> None:
    """No dropout either, although transformers checkpoints in training mode alone."""
    model = MODELS[kind]()
    modes = [module.training for module in model.modules()]
    for module in model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.5
    kept = {}
    for again in (False, True):
        sizes = list[int]()

        def keep(tensor: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            kept[again] = flat(model, again=again), sum(sizes)
    assert torch.equal(kept[True][0], kept[False][0]) and kept[True][1] < 0.5 * kept[False][1]
    for ours, theirs in zip(gradients(model, [range(8)], again=True), gradients(model, [range(8)]), strict=True):
        assert torch.equal(ours, theirs)
    assert [module.training for module in model.modules()] == modes


def test_a_model_without_such_layers_is_refused() -> None:
    model = llama()
    model.model.layers = torch.nn.ModuleList()
    with pytest.raises(UsageError, match="gradient_checkpointing=true: no layer of this llama model"):
        flat(model, again=True)
