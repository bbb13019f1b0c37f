"""DPO with TRL on a real two-layer model, compared with its formula."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from r2v.config import Phase, PreferenceConfig, Price
from r2v.data.episode import Action, Episode, EpisodeMetadata, Observation, Step
from r2v.errors import EmptyResult, InputError, Interrupted
from r2v.policy.load import Loaded
from r2v.policy.prompt_encoder import Encoder, build_messages
from r2v.policy.training.preference import (
    Logps,
    Pair,
    PairRow,
    _warnings,
    build_rows,
    make_trainer,
    mean_logps,
    read_pairs,
    train_preference,
)
from tests import tiny_models

from ..stopping import stopped_by_a_signal

pytestmark = pytest.mark.numerical

PHASE = Phase(
    num_epochs=2,
    lr=2e-3,
    batch_size=4,
    gradient_accumulation_steps=1,
    weight_decay=0.0,
    warmup_ratio=0.0,
    grad_clip=1.0,
    save_steps=1000,
    max_examples=None,
)
DPO_ONLY = PreferenceConfig(sft_weight=0.0)


def _pair(i: int, words: int = 5) -> Pair:
    page = " ".join(f"w{(i + j) % 48}" for j in range(words))
    return Pair(
        prompt=build_messages(f"open w{i % 48}", [page], []),
        chosen="get w1" + " done" * (i % 2),
        rejected="close w2",
        task_id=f"t{i // 2}",
    )


PAIRS = [_pair(i) for i in range(12)]


def _loaded(lora: int = 0) -> Loaded:
    tokenizer = tiny_models.tokenizer()
    model = tiny_models.model(len(tokenizer), 0, torch.float32)
    if lora:
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(0)
        model = get_peft_model(
            model, LoraConfig(r=lora, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
        )
    return Loaded(model=model, tokenizer=tokenizer, name="toy")


def _encoder(max_seq_len: int = 64) -> Encoder:
    return Encoder(tiny_models.tokenizer(), max_seq_len=max_seq_len, reserve=6)


def _rows(pairs: list[Pair]) -> list[PairRow]:
    return build_rows(pairs, _encoder())[0]


def _batch(trainer: Any) -> Any:
    return next(iter(trainer.get_train_dataloader()))


@pytest.mark.parametrize("lora", [0, 4])
def test_the_loss_starts_at_ln_2(lora: int, tmp_path: Path) -> None:
    """With full weights, and with an adapter that is trained already."""
    trainer = make_trainer(_rows(PAIRS), _loaded(lora), PHASE, PreferenceConfig(), tmp_path, 0)
    assert trainer.sigmoid_loss(_batch(trainer)).item() == pytest.approx(math.log(2), abs=1e-6)


def test_a_wrong_reference_is_refused(tmp_path: Path) -> None:
    from r2v.policy.training.preference import _first_loss

    trainer = make_trainer(_rows(PAIRS), _loaded(), PHASE, DPO_ONLY, tmp_path, 0)
    with torch.no_grad():
        for weight in trainer.ref_model.parameters():
            weight.mul_(1.5)
    with pytest.raises(AssertionError, match="not at ln 2"):
        _first_loss(trainer)


@pytest.mark.parametrize(("delta", "loss"), [(10.0, 0.313262), (-10.0, 1.313262), (0.0, 0.693147)])
def test_known_losses(delta: float, loss: float, tmp_path: Path) -> None:
    """beta 0.1 and a reference whose log-ratio differs from the policy's by delta."""
    rows = _rows(PAIRS[:4])
    loaded = _loaded()
    trainer = make_trainer(rows, loaded, PHASE, DPO_ONLY, tmp_path, 0)
    batch = _batch(trainer)
    chosen = [mean_logps(loaded, [row]).chosen - delta for row in rows]
    rejected = [mean_logps(loaded, [row]).rejected for row in rows]
    batch.update(ref_chosen_logps=torch.tensor(chosen), ref_rejected_logps=torch.tensor(rejected))
    trainer.precompute_ref_logps = True
    assert trainer.sigmoid_loss(batch).item() == pytest.approx(loss, abs=2e-6)


def test_identical_pairs_give_no_gradient(tmp_path: Path) -> None:
    loaded = _loaded()
    trainer = make_trainer(_rows([replace(p, rejected=p.chosen) for p in PAIRS]), loaded, PHASE, DPO_ONLY, tmp_path, 0)
    trainer.sigmoid_loss(_batch(trainer)).backward()
    gradients = [p.grad for p in loaded.model.parameters() if p.grad is not None]
    assert gradients and max(float(g.abs().max()) for g in gradients) < 1e-7


def test_no_token_of_a_completion_is_cut(tmp_path: Path) -> None:
    """Contexts far beyond max_seq_len are elided, completions stay whole, pairs that cannot fit are dropped."""
    encoder, long = _encoder(32), [_pair(i, words=20 * i) for i in range(1, 12)]
    rows, dropped = build_rows(long, encoder)
    assert dropped == 0
    for pair, row in zip(long, rows, strict=True):
        assert (row.chosen, row.rejected) == (encoder.action_ids(pair.chosen), encoder.action_ids(pair.rejected))
        assert len(row) <= 32
    trainer = make_trainer(rows[:4], _loaded(), PHASE, DPO_ONLY, tmp_path, 0)
    masks = _batch(trainer)["completion_mask"].sum(-1).tolist()
    assert masks == [len(row.chosen) for row in rows[:4]] + [len(row.rejected) for row in rows[:4]]
    endless = replace(PAIRS[0], chosen=" ".join(["w1"] * 40))
    assert build_rows([endless], encoder) == ([], 1)


def test_a_chosen_log_prob_that_falls_by_more_than_a_tenth_of_its_start_is_warned_of() -> None:
    before = Logps(chosen=-10.0, rejected=-12.0, accuracy=1.0)
    [warning] = _warnings(before, replace(before, chosen=-11.1))
    assert "chosen log-prob fell from -10.000 to -11.100" in warning
    assert _warnings(before, replace(before, chosen=-10.9)) == []
    assert _warnings(before, replace(before, rejected=-40.0)) == [], "that the rejected one falls is the aim"


def test_flipped_pairs_flip_the_margin(tmp_path: Path) -> None:
    flipped = [replace(p, chosen=p.rejected, rejected=p.chosen) for p in PAIRS]
    phase, rows = replace(PHASE, num_epochs=3), _rows(PAIRS)
    margins = {}
    for name, pairs in (("given", PAIRS), ("flipped", flipped)):
        loaded = _loaded()
        start = mean_logps(loaded, rows).margin
        report = train_preference(pairs, loaded, _encoder(), phase, DPO_ONLY, tmp_path / name, seed=0)
        margins[name] = mean_logps(loaded, rows).margin - start
        assert report["reward_margin"] > 0
        assert report["first_loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert margins["given"] > 0 > margins["flipped"]


def test_asked_to_stop_it_goes_on_to_the_same_end(tmp_path: Path) -> None:
    phase = replace(PHASE, num_epochs=16)
    report = train_preference(PAIRS, _loaded(), _encoder(), phase, PreferenceConfig(), tmp_path / "whole", seed=0)
    with stopped_by_a_signal(tmp_path / "cut"), pytest.raises(Interrupted, match="preference: stopped after update"):
        train_preference(PAIRS, _loaded(), _encoder(), phase, PreferenceConfig(), tmp_path / "cut", seed=0)
    assert train_preference(PAIRS, _loaded(), _encoder(), phase, PreferenceConfig(), tmp_path / "cut", seed=0) == report


def test_a_token_weighs_the_same_however_the_batch_is_cut(tmp_path: Path) -> None:
    """Micro-batches of 5, 5 and 2 pairs: TRL's own mean of means would weigh the last two more."""
    losses = []
    for size, steps in ((12, 1), (5, 3)):
        phase = replace(PHASE, batch_size=size, gradient_accumulation_steps=steps, num_epochs=1)
        report = train_preference(
            PAIRS, _loaded(), _encoder(), phase, PreferenceConfig(sft_weight=0.7), tmp_path / str(size), seed=0
        )
        losses.append(report["log"][0]["loss"])
    assert losses[0] == pytest.approx(losses[1], abs=2e-6)


def test_an_adapter_is_exported_without_its_reference(tmp_path: Path) -> None:
    train_preference(PAIRS, _loaded(4), _encoder(), PHASE, PreferenceConfig(), tmp_path, seed=0)
    from safetensors import safe_open

    with safe_open(tmp_path / "final" / "adapter_model.safetensors", "pt") as tensors:
        names = list(tensors.keys())
    assert names and not any("ref" in name.split(".") for name in names)
    assert not (tmp_path / "final" / "ref").exists()


def test_pairs_are_read_and_a_broken_line_is_named(tmp_path: Path) -> None:
    good = (
        '{"prompt":[{"role":"user","content":"g"},{"role":"tool","content":"o"}],'
        '"chosen":"a","rejected":"b","task_id":"t"}\n'
    )
    path = tmp_path / "preference_pairs.jsonl"
    path.write_text(good)
    assert read_pairs(path) == [Pair(prompt=build_messages("g", ["o"], []), chosen="a", rejected="b", task_id="t")]
    path.write_text(good + good[:30])
    with pytest.raises(InputError, match=r"preference_pairs.jsonl:2: not a preference pair"):
        read_pairs(path)


def test_no_pairs_is_an_empty_result(tmp_path: Path) -> None:
    with pytest.raises(EmptyResult, match="no preference pair"):
        train_preference([], _loaded(), _encoder(), PHASE, PreferenceConfig(), tmp_path, seed=0)


def test_where_the_pairs_are_right_executed_success_rises(tmp_path: Path) -> None:
    """An environment of one step that only `get w1` solves. The clone was shown `get w1` and `close w2` equally often;
    200 sampled actions a policy are executed. Seeds fixed: .44 before, .85 after."""
    from r2v.llm.local.backend import LocalBackend
    from r2v.llm.types import Request
    from r2v.policy.training.bc import train_bc

    def world(action: str) -> bool:
        return action == "get w1"

    def executed(loaded: Loaded) -> float:
        backend = LocalBackend(
            loaded.model,
            loaded.tokenizer,
            _encoder(),
            name="slm",
            price=Price(input=0, output=0, seconds_per_call=0, seconds_per_token=0),
        )
        requests = [
            Request(messages=_pair(i % 12).prompt, key=("D6", i), temperature=1.0, max_tokens=6) for i in range(200)
        ]
        return sum(world(reply.text) for reply in backend.answer(requests)) / 200

    shown = [
        Episode(
            episode_id=f"t{i}/{action}",
            success=True,
            metadata=EpisodeMetadata(task_id=f"t{i}", goal=_pair(i).prompt[0].content, benchmark="toy", split="train"),
            steps=(
                Step(
                    step_idx=0,
                    observation=Observation(raw_text=_pair(i).prompt[1].content),
                    action=Action(raw_text=action),
                ),
            ),
        )
        for i in range(12)
        for action in ("get w1", "close w2")
    ]
    loaded = _loaded()
    train_bc(shown, loaded, _encoder(), replace(PHASE, num_epochs=20, lr=5e-3), tmp_path / "bc", seed=0)
    before = executed(loaded)
    pairs = [replace(pair, chosen="get w1") for pair in PAIRS]
    train_preference(pairs, loaded, _encoder(), replace(PHASE, num_epochs=8), DPO_ONLY, tmp_path / "dpo", seed=0)
    assert 0.35 < before < 0.6 < 0.75 < executed(loaded)
