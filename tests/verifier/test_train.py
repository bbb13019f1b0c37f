from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from r2v.config import PolicyConfig
from r2v.distributed import launch
from r2v.errors import EmptyResult, InputError, Interrupted, UsageError
from r2v.storage.checkpoint import SEAL, seal
from r2v.verifier.held_out import fit_temperature, probabilities, readings_of, report
from r2v.verifier.labels import in_order
from r2v.verifier.model import WEIGHTS, VerifierBackend, VerifierModel, load, save
from r2v.verifier.train import VERIFIER_CHECKPOINT, EncodedExample, encoded, nested, train
from tests import tiny_models

from . import toy, two_ranks

pytestmark = pytest.mark.numerical


def trained(examples: list, folder: Path, **changes: float) -> VerifierModel:  # type: ignore[type-arg]
    model = VerifierModel(toy.backbone())
    train(model, encoded(examples, toy.encode), toy.phase(**changes), seed=0, folder=folder)
    return model


def test_a_separable_toy_is_learnt(tmp_path: Path) -> None:
    model = trained(toy.separable(range(600)), tmp_path)
    fresh = toy.separable(range(1_000, 1_400))
    ordered = in_order(fresh)
    figures = report(ordered, probabilities(readings_of(model, ordered, toy.encode).logits, model.temperature))
    assert figures["auroc"] > 0.99 and figures["auroc_within_state"] > 0.99  # type: ignore[operator]
    assert figures["brier"] < figures["brier_constant"] / 3  # type: ignore[operator]
    assert figures["accuracy"] > figures["accuracy_majority"]  # type: ignore[operator]


def test_shuffled_labels_teach_nothing(tmp_path: Path) -> None:
    model = trained(toy.shuffled(range(600)), tmp_path, num_epochs=2)
    fresh = toy.shuffled(range(10_000, 12_000))
    ordered = in_order(fresh)
    figures = report(ordered, probabilities(readings_of(model, ordered, toy.encode).logits, 1.0))
    assert abs(figures["auroc"] - 0.5) <= 0.05  # type: ignore[operator]


def test_cut_and_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    examples = toy.separable(range(200))
    save(trained(examples, tmp_path / "whole", num_epochs=1), tmp_path / "whole")
    asked = iter([False, False, True])
    with pytest.raises(Interrupted, match="after update 3 of 7"):
        train(
            VerifierModel(toy.backbone()),
            encoded(examples, toy.encode),
            toy.phase(num_epochs=1),
            seed=0,
            folder=tmp_path / "cut",
            stop=lambda: next(asked),
        )
    assert (tmp_path / "cut" / VERIFIER_CHECKPOINT).exists()
    save(trained(examples, tmp_path / "cut", num_epochs=1), tmp_path / "cut")
    assert (tmp_path / "cut" / WEIGHTS).read_bytes() == (tmp_path / "whole" / WEIGHTS).read_bytes()


@pytest.mark.parametrize("optimizer", ["adamw_8bit", "paged_adamw_8bit"])
@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
def test_8_bit_moments_are_resumed_too(optimizer: str, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    rows, phase = encoded(toy.separable(range(100)), toy.encode), toy.phase(num_epochs=1, optimizer=optimizer)
    asked = iter([False, True])

    def end(folder: Path, stop: Callable[[], bool] = lambda: False) -> dict[str, torch.Tensor]:
        model = VerifierModel(tiny_models.model(toy.VOCABULARY, 0, torch.float32, hidden=64))
        train(model, rows, phase, seed=0, folder=folder, stop=stop)
        return model.state_dict()

    whole = end(tmp_path / "whole")
    with pytest.raises(Interrupted, match="after update 2 of 4"):
        end(tmp_path / "cut", lambda: next(asked))
    state = torch.load(tmp_path / "cut" / VERIFIER_CHECKPOINT / "state.pt", weights_only=True)["optimizer"]["state"]
    moments = [one["__bnb_optimizer_quant_state__"]["state1"] for one in state.values()]
    assert any(moment.dtype == torch.uint8 for moment in moments)
    assert moments[0].numel() == 64 * toy.VOCABULARY and moments[0].dtype == torch.float32, "the embedding's"
    again = end(tmp_path / "cut")
    assert all(torch.equal(whole[name], again[name]) for name in whole)


@pytest.mark.parametrize("damaged", [1, 2])
def test_a_damaged_checkpoint_costs_updates_and_no_bit(
    damaged: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The newest checkpoint, or all that are kept."""
    examples = toy.separable(range(200))
    save(trained(examples, tmp_path / "whole", num_epochs=1, save_steps=2), tmp_path / "whole")
    trained(examples, tmp_path / "cut", num_epochs=1, save_steps=2)
    kept = sorted((tmp_path / "cut").glob("checkpoint-[0-9]*"), reverse=True)
    for checkpoint in kept[:damaged]:
        (checkpoint / "state.pt").write_bytes((checkpoint / "state.pt").read_bytes()[:-1])
    save(trained(examples, tmp_path / "cut", num_epochs=1, save_steps=2), tmp_path / "cut")
    assert (tmp_path / "cut" / WEIGHTS).read_bytes() == (tmp_path / "whole" / WEIGHTS).read_bytes()
    [line] = caplog.messages
    assert (
        str(kept[0] / "state.pt") in line and ("training restarted" if damaged == 2 else "checkpoint skipped") in line
    )


def test_a_strangers_checkpoint_is_one_line(tmp_path: Path) -> None:
    trained(toy.separable(range(64)), tmp_path, num_epochs=1)
    state = tmp_path / VERIFIER_CHECKPOINT / "state.pt"
    for content in (b"garbage", b""):
        state.write_bytes(content)
        (state.parent / SEAL).unlink()
        seal(state.parent.resolve())
        with pytest.raises(InputError, match="is no checkpoint of this training") as refused:
            trained(toy.separable(range(64)), tmp_path, num_epochs=1)
        assert "\n" not in str(refused.value)


def test_a_training_that_diverges_is_one_sentence_and_leaves_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"verifier: training has diverged: in update \d+ its") as refused:
        trained(toy.separable(range(200)), tmp_path, num_epochs=2, save_steps=1, lr=1e30)
    assert "training.verifier.lr" in str(refused.value) and "\n" not in str(refused.value)
    for checkpoint in tmp_path.glob("checkpoint-[0-9]*"):
        weights = torch.load(checkpoint / "state.pt", weights_only=True)["model"].values()
        assert all(bool(torch.isfinite(weight).all()) for weight in weights)


def test_a_finished_one_is_not_trained_again(tmp_path: Path) -> None:
    """Its checkpoint holds every update, so a run that was cut in a later fold loses none of this one."""
    examples = toy.separable(range(100))
    save(trained(examples, tmp_path, num_epochs=1), tmp_path)
    before = (tmp_path / VERIFIER_CHECKPOINT).stat().st_mtime_ns, (tmp_path / WEIGHTS).read_bytes()
    save(trained(examples, tmp_path, num_epochs=1), tmp_path)
    assert ((tmp_path / VERIFIER_CHECKPOINT).stat().st_mtime_ns, (tmp_path / WEIGHTS).read_bytes()) == before


def test_micro_batches_do_not_change_the_update(tmp_path: Path) -> None:
    examples = toy.separable(range(96))
    weights = []
    for size, steps in ((32, 1), (8, 4)):
        model = VerifierModel(toy.backbone().double())
        rows = encoded(reversed(examples) if size == 8 else examples, toy.encode)
        train(
            model,
            rows,
            toy.phase(batch_size=size, gradient_accumulation_steps=steps, num_epochs=1),
            seed=0,
            folder=tmp_path / str(size),
        )
        weights.append(model.head.weight.detach().numpy())
    np.testing.assert_allclose(*weights, rtol=1e-9, atol=1e-12)


def test_tasks_weigh_the_same() -> None:
    rows = encoded([toy.example(0, 1.0, [1]), toy.example(1, 0.0, [2]), toy.example(4, 1.0, [3])], toy.encode)
    assert [row.weight for row in rows] == pytest.approx([0.75, 0.75, 1.5])


def test_one_class_is_an_empty_result() -> None:
    with pytest.raises(EmptyResult, match="2 good actions, 0 bad"):
        encoded([toy.example(0, 1.0, [1]), toy.example(1, 0.8, [2])], toy.encode)


@pytest.mark.parametrize("family", ["lfm2", "llama"])
def test_a_score_does_not_depend_on_its_company(family: str, tmp_path: Path) -> None:
    from r2v.llm.types import ScoreRequest

    model = VerifierModel(toy.backbone(family).double())
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(1))
    backend = VerifierBackend(model, toy.encode)
    questions = [ScoreRequest(messages=e.messages, action=e.action) for e in toy.separable(range(40))]
    questions.append(ScoreRequest(messages=questions[0].messages * 6, action="12 13"))
    together = backend.answer(questions)
    assert together == [backend.answer([question])[0] for question in questions]
    assert len(set(together)) > 30 and all(0 < reply.score < 1 for reply in together)
    assert [reply.tokens_in for reply in together] == [len(toy.encode(q.messages, q.action)) for q in questions]
    assert backend.answer(questions[::-1])[::-1] == together


def test_what_pads_are_does_not_matter() -> None:
    model = VerifierModel(toy.backbone().double())
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(1))
    short, longer = [3, 4, 5], [6, 7, 8, 9, 10, 11]
    lengths = torch.tensor([3, 6])
    every_row = torch.arange(2)
    logits = [model(torch.tensor([short + [pad] * 3, longer]), lengths, every_row, lengths) for pad in (0, 63)]
    torch.testing.assert_close(logits[0], logits[1], rtol=0, atol=1e-12)


def test_saved_and_loaded_scores_are_equal_and_bytes_too(tmp_path: Path) -> None:
    from r2v.errors import InputError
    from r2v.llm.types import ScoreRequest

    model = trained(toy.separable(range(64)), tmp_path, num_epochs=1)
    model.temperature = 1.5
    for name in ("a", "b"):
        save(model, tmp_path / name)
    again = load(tmp_path / "a", toy.backbone(seed=1))
    question = ScoreRequest(messages=toy.separable(range(1))[0].messages, action="7 8")
    assert VerifierBackend(again, toy.encode).answer([question]) == VerifierBackend(model, toy.encode).answer(
        [question]
    )
    assert (tmp_path / "a" / WEIGHTS).read_bytes() == (tmp_path / "b" / WEIGHTS).read_bytes()
    assert not any(parameter.requires_grad for parameter in again.parameters())
    with pytest.raises(InputError, match="not a verifier of this base"):
        load(tmp_path / "a", toy.backbone("llama"))
    with pytest.raises(InputError, match="not a verifier of this base"):
        load(tmp_path / "nowhere", toy.backbone())


@pytest.mark.parametrize("family", ["lfm2", "llama"])
def test_adapters_and_head_come_back_on_the_shared_base(family: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    from r2v.policy.export import export_adapters
    from r2v.policy.load import load_policy
    from r2v.policy.shared_base import acting_policy
    from tests.policy.bases import saved_base

    policy = PolicyConfig(model_name=str(saved_base(family, tmp_path / "base")), lora_r=2, device="cpu")
    loaded = load_policy(policy, for_training=True)
    model = VerifierModel(loaded.model)
    examples = toy.separable(range(64))
    train(model, encoded(examples, toy.encode), toy.phase(num_epochs=1), seed=0, folder=tmp_path)
    export_adapters(loaded, tmp_path)
    save(model, tmp_path, adapted=True)
    assert set(load_file(tmp_path / WEIGHTS)) == {"head.weight", "head.bias"}
    again = load(tmp_path, acting_policy(policy, tmp_path).model)
    read, expected = (readings_of(one.eval(), examples, toy.encode).logits for one in (again, model))
    np.testing.assert_allclose(read, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="no backbone"):
        load(tmp_path, load_policy(policy).model)


def test_temperature_is_recovered_and_bounds_are_loud(caplog: pytest.LogCaptureFixture) -> None:
    from r2v.randomness import generator

    draw = generator("temperature")
    logits = np.array([draw.gauss(0, 4) for _ in range(20_000)])
    targets = np.array([float(draw.random() < 1 / (1 + np.exp(-z / 2))) for z in logits])
    assert fit_temperature(logits, targets, np.ones_like(logits)) == pytest.approx(2, rel=0.05)
    assert not caplog.records
    assert fit_temperature(logits, 1 - targets, np.ones_like(logits)) == pytest.approx(20, rel=1e-3)
    assert "bound" in caplog.text


def test_a_row_inside_a_longer_one_is_read_with_it_and_scores_the_same() -> None:
    rows = [
        EncodedExample(ids=(5, 6), target=1.0),
        EncodedExample(ids=(5, 6, 7, 8), target=0.0),
        EncodedExample(ids=(5, 9), target=1.0),
    ]
    groups = nested(rows)
    assert [group.ids for group in groups] == [(5, 6, 7, 8), (5, 9)]
    assert sorted(len(row.ids) for group in groups for row in group.rows) == [2, 2, 4]
    model = VerifierModel(toy.backbone().double())
    torch.nn.init.normal_(model.head.weight)
    together = model.logits_at([(5, 6, 7, 8), (5, 9)], [[4, 2], [2]])
    apart = model.score(model.features([(5, 6, 7, 8), (5, 6), (5, 9)]))
    assert torch.allclose(together, apart, atol=1e-12)


@pytest.mark.usefixtures("warm_ranks")
def test_two_ranks_train_what_one_does_and_the_same_after_a_stop(tmp_path: Path) -> None:
    """In float64, up to the order of a sum. Micro-batches are shared: of an odd count one rank has more."""
    launch(2, "-m", two_ranks.__name__, str(tmp_path))
    alone = two_ranks.train_toy(tmp_path / "alone")
    assert json.loads((tmp_path / "losses.json").read_text()) == pytest.approx(alone, rel=1e-9)
    once, cut, one = (load_file(tmp_path / name / WEIGHTS) for name in ("once", "cut", "alone"))
    assert once.keys() == one.keys() and all(torch.equal(once[name], cut[name]) for name in once)
    for name, weights in one.items():
        torch.testing.assert_close(once[name], weights, rtol=1e-7, atol=1e-9)
