"""One base serves as three models; the placement of the roles changes no result."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel

from r2v.config import CostConfig, CriticConfig, GuidanceConfig, PolicyConfig
from r2v.errors import InputError, UsageError
from r2v.hrl.algorithm.logprobs import completion_logprobs, pad_sequences
from r2v.hrl.algorithm.losses import policy_loss, token_weights
from r2v.hrl.algorithm.training_batch import batch_logprobs
from r2v.hrl.models.bases import load_base
from r2v.hrl.models.encoders import padded_text
from r2v.hrl.models.roles import Roles, build_roles
from r2v.hrl.rollout.generator import GenerationRequest, Generator
from r2v.hrl.tasks.prompts import Prompter
from r2v.llm.local.backend import LocalBackend
from r2v.llm.types import Request
from r2v.policy.export import export
from r2v.policy.load import Loaded, load_policy
from r2v.wire.message import Message
from tests.hrl.tabular_mdp import exact_kl

from ..playing import PROBLEMS, build, save_model, settings, stirred, tokenizer

pytestmark = pytest.mark.numerical

KINDS = ("llama", "lfm2")
PROMPTS, SAID = [[3, 9, 10, 4], [3, 11, 4], [3, 7, 8, 9, 10, 4]], [[20, 21, 2], [22, 2], [9, 9, 12, 30]]


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), request.param)


def logprobs(roles: Roles, role: Any) -> Tensor:
    with roles.using(role) as model, torch.no_grad():
        return completion_logprobs(model, pad_sequences(PROMPTS, SAID))


def step(roles: Roles, role: Any, steps: int, lr: float = 1e-2) -> list[float]:
    """Update one role; return the losses."""
    optimizer, rows, losses = torch.optim.AdamW(roles.parameters(role), lr=lr), pad_sequences(PROMPTS, SAID), []
    for _ in range(steps):
        optimizer.zero_grad()
        with roles.using(role) as model:
            weights = token_weights(torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64))
            loss = policy_loss(completion_logprobs(model, rows), weights, rows.completion, 3.0)
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_shared_reference_is_a_copied_one_to_the_bit_before_and_after_training(model: Path) -> None:
    shared, copied = build(model, "shared"), build(model, "full")
    frozen = logprobs(copied, "reference")
    with torch.no_grad():
        logits = []
        for role in ("actor", "guidance", "reference"):
            with shared.using(role) as one:  # type: ignore[arg-type]
                logits.append(one(pad_sequences(PROMPTS, SAID).ids).logits)
    assert exact_kl(logits[0], logits[2]).eq(0.0).all() and exact_kl(logits[1], logits[2]).eq(0.0).all()
    assert torch.equal(logprobs(shared, "reference"), frozen)
    guidance, hinted = shared.state("guidance"), logprobs(shared, "guidance")

    step(shared, "actor", 5)

    assert torch.equal(logprobs(shared, "reference"), frozen) and torch.equal(logprobs(copied, "reference"), frozen)
    assert (logprobs(shared, "actor") - frozen).abs().max() > 1e-2
    assert all(torch.equal(tensor, guidance[name]) for name, tensor in shared.trained("guidance").items())
    assert torch.equal(logprobs(shared, "guidance"), hinted)
    assert all(tensor.grad is None for tensor in shared.parameters("guidance"))


def test_training_guidance_leaves_actor_and_reference_alone(model: Path) -> None:
    shared = build(model, "shared")
    actor, frozen = shared.state("actor"), logprobs(shared, "reference")
    step(shared, "guidance", 2)
    assert all(torch.equal(tensor, actor[name]) for name, tensor in shared.trained("actor").items())
    assert torch.equal(logprobs(shared, "reference"), frozen)
    assert not torch.equal(logprobs(shared, "guidance"), frozen)


@pytest.mark.parametrize("lora", [0, 4])
def test_where_roles_stand_changes_no_log_probability_no_gradient_and_no_step(model: Path, lora: int) -> None:
    found = []
    for placement in ("shared", "full", "split") if lora else ("full", "split"):
        roles = build(model, placement, lora)
        if lora:
            stirred(roles)
        before = [logprobs(roles, role) for role in ("actor", "guidance", "reference")]
        losses = [step(roles, "actor", 3), step(roles, "guidance", 3)]
        gradients = [
            {name: tensor.grad for name, tensor in roles.trained(role).items()} for role in ("actor", "guidance")
        ]
        found.append((before, losses, gradients, roles.state("actor"), roles.state("critic")))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=0)
    before, losses, gradients, _, _ = found[0]
    assert all(one.abs().max() > 1e-6 for role in gradients for one in role.values() if one is not None)
    assert lora == 0 or not torch.equal(before[0], before[1])
    assert losses[0][0] != losses[0][2]


def test_adapters_are_drawn_from_seed_and_role_alone_and_nothing_else_is_drawn(model: Path) -> None:
    torch.manual_seed(11)
    untouched = torch.get_rng_state()
    one, other = build(model, seed=3), build(model, seed=4)
    assert torch.equal(torch.get_rng_state(), untouched)
    again = build(model, seed=3).state("actor")
    assert all(torch.equal(again[name], tensor) for name, tensor in one.state("actor").items())
    for mine, theirs in (
        (one.state("actor"), one.state("guidance")),
        (one.state("actor"), other.state("actor")),
        (one.state("critic"), other.state("critic")),
    ):
        assert mine.keys() == theirs.keys() and not all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_a_state_fits_every_placement_and_is_a_copy(model: Path) -> None:
    shared, split = build(model, "shared"), build(model, "split", seed=8)
    step(shared, "actor", 2)
    taken = {role: shared.state(role) for role in ("actor", "guidance", "critic", "target")}
    wanted = logprobs(shared, "actor")
    step(shared, "actor", 1)
    for role, state in taken.items():
        split.load(role, state)
        assert all(torch.equal(state[name], tensor) for name, tensor in split.trained(role).items())
    assert torch.equal(logprobs(split, "actor"), wanted) and not torch.equal(logprobs(shared, "actor"), wanted)


def test_a_state_of_another_model_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not fit"):
        build(model, lora=4).load("actor", build(model, lora=2).state("actor"))


def acts(loaded: Loaded) -> Any:
    prompter = Prompter(loaded.tokenizer)
    backend = LocalBackend(
        loaded.model,
        loaded.tokenizer,
        lambda messages: prompter.answer(PROBLEMS[2], []),
        name="one",
        price=CostConfig().slm,
    )
    return backend.answer(
        [
            Request(messages=(Message(role="user", content="x"),), key=(k,), temperature=1.0, max_tokens=12)
            for k in range(8)
        ]
    )


@pytest.mark.parametrize("lora", [0, 4])
@pytest.mark.parametrize("placement", ["shared", "full"])
def test_the_actor_is_handed_on_as_a_policy_that_acts_the_same_to_the_bit(
    model: Path, tmp_path: Path, lora: int, placement: str
) -> None:
    """Weights, words and recorded log-probabilities are equal to the bit. Logits differ by 2e-15: matrix products
    depend on the memory alignment of their factors, and arrays read from a file are aligned differently."""
    roles = build(model, placement if lora else "full", lora)
    step(roles, "actor", 3)
    export(roles.actor_as_policy(), tmp_path / "final")
    assert (tmp_path / "final" / "adapter_config.json").exists() == (lora > 0)
    back = load_policy(
        PolicyConfig(model_name=str(model), lora_r=lora, device="cpu", dtype="float64"), tmp_path / "final"
    )
    ids = pad_sequences(PROMPTS, SAID).ids
    with roles.using("actor") as actor, torch.no_grad():
        torch.testing.assert_close(actor(ids).logits, back.model(ids).logits, rtol=0, atol=1e-13)
        theirs = dict(back.model.named_parameters())
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in actor.named_parameters() if name in theirs)
        assert {name for name, _ in actor.named_parameters()} - theirs.keys() == {
            name for name, _ in actor.named_parameters() if ".guidance." in name
        }
        said = acts(Loaded(model=actor, tokenizer=roles.tokenizer, name=back.name))
    assert acts(back) == said and len({reply.text for reply in said}) > 1
    assert not torch.equal(logprobs(roles, "actor"), logprobs(roles, "reference"))


@pytest.mark.parametrize("first", [0, 4])
@pytest.mark.parametrize("then", [0, 4])
def test_both_start_from_exported_weights_and_the_actor_goes_on_from_there(
    model: Path, tmp_path: Path, first: int, then: int
) -> None:
    before = build(model, lora=first)
    step(before, "actor", 3)
    export(before.actor_as_policy(), tmp_path / "bc")
    wanted = logprobs(before, "actor")

    roles = build(model, lora=then, weights=tmp_path / "bc")
    for role in ("actor", "guidance", "reference"):
        torch.testing.assert_close(logprobs(roles, role), wanted, rtol=0, atol=1e-12)
    assert (logprobs(before, "reference") - wanted).abs().max() > 1e-2

    step(roles, "actor", 3)
    export(roles.actor_as_policy(), tmp_path / "final")
    back = load_policy(
        PolicyConfig(model_name=str(model), lora_r=then, device="cpu", dtype="float64"), tmp_path / "final"
    )
    with torch.no_grad():
        torch.testing.assert_close(
            completion_logprobs(back.model, pad_sequences(PROMPTS, SAID)), logprobs(roles, "actor"), rtol=0, atol=1e-12
        )
    with roles.using("actor") as actor:
        assert acts(back) == acts(Loaded(model=actor, tokenizer=roles.tokenizer, name=back.name))


def test_a_small_model_is_float64_on_a_cpu_and_so_is_its_critic(model: Path) -> None:
    """In every layer: norms that round to float32 would show."""
    roles = build_roles(PolicyConfig(model_name=str(model), lora_r=4, device="cpu"), settings(), 0)
    assert torch.equal(logprobs(roles, "actor"), logprobs(build(model), "actor"))
    everything = [*roles.parameters("actor"), *roles.parameters("critic"), *roles.target.critic.parameters()]
    with roles.using("reference") as base:
        assert {tensor.dtype for tensor in [*everything, *base.parameters()]} == {torch.float64}


def test_the_dropout_of_other_trainings_is_none_here(model: Path) -> None:
    policy = PolicyConfig(model_name=str(model), lora_r=4, lora_dropout=0.1, device="cpu")
    roles = build_roles(policy, settings(), 0)
    with roles.using("actor") as actor:
        assert actor.peft_config and {one.lora_dropout for one in actor.peft_config.values()} == {0.0}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"load_in_4bit": True}, "policy.load_in_4bit"),
    ],
)
def test_what_cannot_be_trained_is_refused(model: Path, changes: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        build_roles(PolicyConfig(model_name=str(model), device="cpu", **changes), settings(), 0)


def test_all_weights_in_bfloat16_are_float32_and_computed_in_bfloat16(model: Path) -> None:
    """As under autocast: compared with float32, the log-probabilities move by bfloat16's rounding and the weights not
    at all."""
    policy = PolicyConfig(model_name=str(model), device="cpu", lora_r=0, dtype="float32")
    exact = build_roles(policy, settings("full"), 0)
    roles = build_roles(replace(policy, dtype="bfloat16"), settings("full"), 0)
    assert {tensor.dtype for tensor in roles.parameters("actor")} == {torch.float32}
    ours, wide = logprobs(roles, "actor"), logprobs(exact, "actor")
    assert not torch.equal(ours, wide)
    assert (ours - wide).abs().max() < 16 * torch.finfo(torch.bfloat16).eps * wide.abs().max()
    assert torch.equal(ours, logprobs(roles, "reference"))
    with roles.using("actor") as actor, torch.autocast("cpu", torch.bfloat16):
        rows = pad_sequences(PROMPTS, SAID)
        logits = actor(input_ids=rows.ids, attention_mask=rows.attention.long(), position_ids=rows.positions).logits
    whole = logits[:, :-1].float().log_softmax(-1).gather(-1, rows.ids[:, 1:, None]).squeeze(-1)
    torch.testing.assert_close(ours[:, 1:], torch.where(rows.completion[:, 1:], whole, 0.0), rtol=0, atol=1e-5)


def test_autocasts_copies_follow_the_weights(model: Path) -> None:
    """A step between two passes shows in the second: no copy outlives the block it was made in."""
    roles = build_roles(
        PolicyConfig(model_name=str(model), device="cpu", lora_r=0, dtype="bfloat16"), settings("full"), 0
    )
    before = logprobs(roles, "actor")
    with torch.no_grad():
        for tensor in roles.parameters("actor"):
            tensor.mul_(1.5)
    assert not torch.equal(before, logprobs(roles, "actor"))


def test_bfloat16_computed_over_shards_is_refused(model: Path) -> None:
    with pytest.raises(UsageError, match="policy.dtype=bfloat16: .* set policy.dtype=auto"):
        load_base(
            PolicyConfig(model_name=str(model), device="cpu", lora_r=0, dtype="bfloat16"), None, "cpu", autocast=False
        )


def test_a_role_inside_another_gives_the_base_back_as_it_was(model: Path) -> None:
    roles = stirred(build(model, "shared"))
    wanted = {role: logprobs(roles, role) for role in ("actor", "guidance", "reference")}
    rows = pad_sequences(PROMPTS, SAID)
    with torch.no_grad(), roles.using("actor") as one:
        with roles.using("reference") as two, roles.using("guidance") as three:
            assert one is two is three and torch.equal(completion_logprobs(one, rows), wanted["guidance"])
        assert torch.equal(completion_logprobs(one, rows), wanted["actor"])
    assert all(tensor.requires_grad for role in ("actor", "guidance") for tensor in roles.parameters(role))
    assert not torch.equal(wanted["actor"], wanted["guidance"])


def test_nobody_changes_the_adapter_while_another_thread_uses_it(model: Path) -> None:
    roles = stirred(build(model, "shared"))
    wanted, inside, done = logprobs(roles, "actor"), threading.Event(), threading.Event()

    def other() -> None:
        inside.set()
        logprobs(roles, "guidance")
        done.set()

    with torch.no_grad(), roles.using("actor") as one:
        thread = threading.Thread(target=other)
        thread.start()
        assert inside.wait(10) and not done.wait(0.2)
        assert torch.equal(completion_logprobs(one, pad_sequences(PROMPTS, SAID)), wanted)
    thread.join(10)
    assert done.is_set()


# the critic's input

TEXTS = [[3, 9, 10, 4], list(range(5, 35)), [2]]


def test_the_small_reader_takes_the_last_tokens_as_they_are(model: Path) -> None:
    roles = build(model)
    ids, lengths = roles.encode_for_critic(TEXTS)
    assert ids.shape == (3, 16) and ids.dtype == torch.int32 and lengths.tolist() == [4, 16, 1]
    assert ids[0, :4].tolist() == TEXTS[0] and ids[1].tolist() == TEXTS[1][-16:] and ids[0, 4:].eq(0).all()


def test_a_text_is_worth_the_same_in_any_company(model: Path) -> None:
    roles = build(model, guidance=GuidanceConfig(baseline="value"))
    rows = roles.encode_for_critic(TEXTS)
    assert roles.value is not None
    with torch.no_grad():
        gathered, worth = roles.critic(padded_text(rows), padded_text(rows)), roles.value(*padded_text(rows))
        assert gathered.q.shape == (2, 3) and worth.shape == (3,) and gathered.floor.std() > 0
        for i in range(3):
            alone = padded_text((rows[0][i : i + 1], rows[1][i : i + 1]))
            one = roles.critic(alone, alone)
            torch.testing.assert_close(
                [one.q, one.v, one.floor, roles.value(*alone)],
                [gathered.q[:, i : i + 1], gathered.v[:, i : i + 1], gathered.floor[i : i + 1], worth[i : i + 1]],
                rtol=0,
                atol=1e-12,
            )


def test_a_value_function_is_there_where_the_baseline_is_one(model: Path) -> None:
    assert build(model).value is None and build(model).parameters("value") == []
    off = GuidanceConfig(enabled=False, baseline="value")
    assert build(model, guidance=off).value is None
    value = build(model, guidance=GuidanceConfig(baseline="value"))
    assert len(value.parameters("value")) > 4 and len(value.state("value")) == len(value.parameters("value"))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a published encoder in small, with a vocabulary of its own that knows fewer words."""
    folder = tmp_path_factory.mktemp("encoder")
    own = tokenizer()
    words = {"<pad>": 0, "<unk>": 1, "<eos>": 2, "how": 3, "many": 4, "w1": 5, "w2": 6}
    from tokenizers import Tokenizer, models, pre_tokenizers

    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    type(own)(tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>", eos_token="<eos>").save_pretrained(folder)
    torch.manual_seed(0)
    RobertaModel(
        RobertaConfig(
            vocab_size=7,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=18,
        )
    ).save_pretrained(folder)
    return folder


def test_a_published_encoder_reads_the_text_again_by_its_own_words(model: Path, encoder: Path) -> None:
    critic = CriticConfig(model_name=str(encoder), max_tokens=3)
    roles = build(model, critic=critic)
    [how, many, w1, w2, w3] = roles.tokenizer.convert_tokens_to_ids(["how", "many", "w1", "w2", "w3"])
    ids, lengths = roles.encode_for_critic([[3, how, many, w1, w2, w3, 2], [2]])
    assert ids.tolist() == [[5, 6, 1], [1, 0, 0]] and lengths.tolist() == [3, 1]
    critic_text = padded_text((ids, lengths))
    said = roles.critic(critic_text, critic_text)
    (said.q.sum() + said.v.sum() + said.floor.sum()).backward()  # type: ignore[no-untyped-call]
    assert all(tensor.grad is not None for tensor in roles.parameters("critic"))


def test_an_encoder_that_reads_less_or_cannot_be_found_is_refused(model: Path, encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at most 16 tokens"):
        build(model, critic=CriticConfig(model_name=str(encoder), max_tokens=17))
    with pytest.raises(InputError, match="hierarchical.critic.model_name"):
        build(model, critic=CriticConfig(model_name=str(tmp_path / "none")))
    torch.manual_seed(0)
    BertModel(
        BertConfig(
            vocab_size=7,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=16,
        )
    ).save_pretrained(tmp_path / "bert")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "bert" / name).write_bytes((encoder / name).read_bytes())
    assert build(model, critic=CriticConfig(model_name=str(tmp_path / "bert"), max_tokens=16)).critic


def test_the_slow_copy_follows_the_critic(model: Path) -> None:
    roles = build(model, critic=CriticConfig(max_tokens=16, tau=0.25))
    with torch.no_grad():
        for tensor in roles.parameters("critic"):
            tensor += 1.0
    before = roles.state("target")
    roles.target.update()
    for name, tensor in roles.trained("target").items():
        torch.testing.assert_close(tensor, before[name] + 0.25, rtol=0, atol=1e-12)


def test_what_is_generated_in_bfloat16_is_weighed_as_an_update_weighs_it(model: Path) -> None:
    """So the ratio of an update begins at 1, with autocast too."""
    policy = PolicyConfig(model_name=str(model), device="cpu", lora_r=0, dtype="bfloat16")
    roles = build_roles(policy, settings("full"), 0)
    requests = [GenerationRequest(prompt=tuple(prompt), key=("g", i), max_tokens=6) for i, prompt in enumerate(PROMPTS)]
    said = Generator(roles, "actor").generate(requests)
    with roles.using("actor") as actor:
        again = batch_logprobs(actor, "cpu", said, len(said))
    assert [list(one.logprobs) for one in said] == [pytest.approx(row, abs=1e-6) for row in again]
