"""Prefix trees: one pass teaches the same as a row for each step."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from r2v.config import Phase
from r2v.data.episode import Action, Episode, EpisodeMetadata, Observation, Step
from r2v.policy.load import Loaded
from r2v.policy.prefix_tree import IGNORED, Layout, Row, lay_out, mask_for, tree_mask, why_no_trees
from r2v.policy.prompt_encoder import Encoder
from r2v.policy.training import bc
from r2v.policy.training.rows import build_rows
from r2v.policy.training.trainers import collate_trees
from r2v.randomness import generator
from tests import tiny_models
from tests.trust import drawn

pytestmark = pytest.mark.numerical

THINKING = tiny_models.TEMPLATE.replace(
    "{% if add_generation_prompt %}<assistant>{% endif %}", "{% if add_generation_prompt %}<assistant>w0 w0{% endif %}"
)
"""A template that asks for an action after an empty thought, and drops the thought from the history."""


def _row(prompt: list[int], action: list[int]) -> Row:
    return prompt + action, [IGNORED] * len(prompt) + action


def test_a_known_tree() -> None:
    (tree,) = lay_out([_row([1, 2, 3], [7, 8]), _row([1, 2, 3, 9, 4], [5])], 100)
    assert tree == Layout(
        ids=[1, 2, 3, 7, 8, 3, 9, 4, 5],
        labels=[IGNORED, IGNORED, IGNORED, 7, 8, IGNORED, IGNORED, IGNORED, 5],
        depths=[0, 1, 2, 3, 4, 2, 3, 4, 5],
        ends=[9, 9, 5, 5, 5, 9, 9, 9, 9],
        rows=2,
    )


def test_rows_that_continue_one_another_are_one_path() -> None:
    (tree,) = lay_out([_row([1, 2], [7, 8]), _row([1, 2, 7, 8, 3], [5])], 100)
    assert tree.ids == [1, 2, 7, 8, 3, 5] and tree.depths == list(range(6)) and set(tree.ends) == {6}
    assert tree.labels == [IGNORED, IGNORED, 7, 8, IGNORED, 5]


def _rows(number: int) -> list[Row]:
    """Return a conversation's steps whose history is rewritten somewhere near the end, or anywhere, or not at all."""
    draw = generator("tree rows", number)
    history, rows = [draw.randrange(6) for _ in range(draw.randint(1, 9))], list[Row]()
    for _ in range(draw.randint(1, 7)):
        action = [draw.randrange(6) for _ in range(draw.randint(1, 4))]
        rows.append(_row(history + [draw.randrange(3)] * draw.randint(0, 2), action))
        kept = history[: draw.randint(1, len(history))] if draw.random() < 0.3 else history
        history = kept + action * draw.randint(0, 1) + [draw.randrange(6) for _ in range(draw.randint(0, 5))]
    return rows


def _lessons(ids: list[int], labels: list[int]) -> Counter[tuple[int, ...]]:
    return Counter(tuple(ids[: i + 1]) for i, label in enumerate(labels) if label != IGNORED)


@pytest.mark.parametrize("most", [20, 10_000])
def test_each_action_token_is_learnt_once_after_all_that_stood_before_it(most: int) -> None:
    for number in range(300):
        rows = _rows(number)
        trees = lay_out(rows, most)
        assert sum(tree.rows for tree in trees) == len(rows)
        assert all(tree.rows == 1 or len(tree.ids) <= most for tree in trees)
        found = Counter[tuple[int, ...]]()
        for tree in trees:
            sees = tree_mask(torch.tensor([tree.ends]))[0, 0]
            for i, label in enumerate(tree.labels):
                path = sees[i].nonzero().flatten().tolist()
                assert [tree.depths[j] for j in path] == list(range(len(path)))
                if label != IGNORED:
                    assert label == tree.ids[i] and path[-2:] == [i - 1, i]
                    found[tuple(tree.ids[j] for j in path)] += 1
        assert found == sum((_lessons(list(ids), list(labels)) for ids, labels in rows), Counter())


def _small(kind: str, vocabulary: int = 64, **options: Any) -> Any:
    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "initializer_range": 0.2,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": 2,
        **options,
    }
    if kind == "bloom":
        return BloomForCausalLM(BloomConfig(vocab_size=vocabulary, hidden_size=32, n_layer=2, n_head=4)).eval()
    made = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
        "mistral": (MistralConfig, MistralForCausalLM),
        "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM),
    }
    config, model = made[kind]
    return model(config(**shape)).eval()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("llama", {}),
        ("llama", {"attn_implementation": "eager"}),
        ("qwen3", {"tie_word_embeddings": True}),
        ("gemma3", {"sliding_window": 512}),
    ],
)
def test_losses_and_gradients_are_those_of_a_row_for_each_step(kind: str, options: dict[str, Any]) -> None:
    model = _small(kind, **options).double()
    assert why_no_trees(model, longest=200) is None
    episodes = [_rows(number) for number in range(6)]
    alone = torch.zeros((), dtype=torch.float64)
    for ids, labels in (row for rows in episodes for row in rows):
        logits = model(input_ids=torch.tensor([ids])).logits[0, :-1]
        alone = alone + torch.nn.functional.cross_entropy(logits, torch.tensor(labels[1:]), reduction="sum")
    alone.backward()
    wanted = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()

    trees = [tree for rows in episodes for tree in lay_out(rows, 10_000)]
    batch = collate_trees(
        [{"input_ids": t.ids, "labels": t.labels, "depths": t.depths, "ends": t.ends} for t in trees], pad_id=0
    )
    logits = model(
        input_ids=batch["input_ids"], attention_mask=mask_for(model, batch["ends"]), position_ids=batch["depths"]
    ).logits[:, :-1]
    together = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction="sum", ignore_index=IGNORED
    )
    together.backward()
    assert abs(float(together - alone)) < 1e-7 * float(alone)
    for name, p in model.named_parameters():
        worst = float((p.grad - wanted[name]).abs().max() / wanted[name].abs().max())
        assert worst < 1e-6, f"{name}: {worst}"


def test_models_that_take_their_past_from_elsewhere_are_told_apart() -> None:
    assert why_no_trees(_small("llama"), 8192) is None
    assert "8193 squared" in str(why_no_trees(_small("llama"), 8193))
    assert why_no_trees(_small("llama").bfloat16(), 4096) is None
    assert "kind conv" in str(why_no_trees(tiny_models.model(64, dtype=torch.float32), 100))
    assert "slides over 16 tokens" in str(why_no_trees(_small("gemma3", sliding_window=16), 100))
    assert "slides over 16 tokens" in str(why_no_trees(_small("mistral", sliding_window=16), 100))
    assert why_no_trees(_small("mistral", sliding_window=None), 100) is None
    moving = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    assert "type dynamic" in str(why_no_trees(_small("llama", rope_parameters=moving), 100))
    assert why_no_trees(_small("bloom"), 100) is not None, "its positions are those of the sequence"


class _Deaf(LlamaForCausalLM):  # type: ignore[misc]
    """A model that accepts a mask and ignores it."""

    def forward(self, *args: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


def test_a_model_that_ignores_the_mask_is_found_out() -> None:
    deaf = _small("llama")
    deaf.__class__ = _Deaf
    assert why_no_trees(deaf, 100) == "it reads a tree differently from its rows"


PHASE = Phase(
    num_epochs=1,
    lr=1e-2,
    batch_size=64,
    gradient_accumulation_steps=1,
    weight_decay=0.0,
    warmup_ratio=0.0,
    grad_clip=1.0,
    save_steps=100,
    max_examples=None,
)


def _episode(i: int) -> Episode:
    draw = generator("tree episode", i)
    pages = [" ".join(f"w{draw.randrange(48)}" for _ in range(draw.randint(8, 20))) for _ in range(6)]
    return Episode(
        episode_id=f"t{i}/s1",
        success=True,
        metadata=EpisodeMetadata(task_id=f"t{i}", goal=f"open w{i % 48}", benchmark="toy", split="train"),
        steps=tuple(
            Step(step_idx=s, observation=Observation(raw_text=page), action=Action(raw_text=f"get w{(i + s) % 48}"))
            for s, page in enumerate(pages)
        ),
    )


def _encoder(max_seq_len: int) -> Encoder:
    return Encoder(tiny_models.tokenizer(THINKING), max_seq_len=max_seq_len, reserve=6)


def test_elided_and_rewritten_steps_share_what_they_can(caplog: pytest.LogCaptureFixture) -> None:
    episodes = [_episode(i) for i in range(8)]
    for max_seq_len, least in ((400, 2.5), (110, 1.2)):
        encoder = _encoder(max_seq_len)
        alone, built = build_rows(episodes, encoder).rows, build_rows(episodes, encoder, lambda: True).rows
        assert sum(row.steps for row in built) == len(alone) == 48
        assert sum(row.elided for row in built) == sum(row.elided for row in alone)
        assert sum(row.alone for row in built) == sum(len(row.ids) for row in alone)
        assert all(len(row.ids) <= max_seq_len for row in built)
        spared = sum(row.alone for row in built) / sum(len(row.ids) for row in built)
        assert spared > least, f"{spared} at {max_seq_len}"


@pytest.mark.parametrize("lora", drawn([False, True], 1, "trees"))
def test_cloning_in_trees_ends_in_the_weights_of_cloning_step_by_step(
    lora: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Through TRL's trainer, in an update over all steps."""
    episodes, encoder, weights = [_episode(i) for i in range(6)], _encoder(400), {}
    for way in ("trees", "steps"):
        model = _small("llama", len(encoder.tokenizer)).double()
        if lora:
            from peft import LoraConfig, get_peft_model

            torch.manual_seed(0)
            model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
        if way == "steps":
            monkeypatch.setattr(bc, "why_no_trees", lambda model, longest: "because I say so")
        loaded = Loaded(model=model, tokenizer=encoder.tokenizer, name="small")
        with caplog.at_level(logging.INFO, "r2v"):
            report = bc.train_bc(episodes, loaded, encoder, PHASE, tmp_path / way, seed=1)
        weights[way] = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
        assert report["n_steps"] == 36 and report["n_rows"] == (6 if way == "trees" else 36)
        if way == "trees":
            assert report["n_tokens_step_by_step"] > 2.5 * report["n_tokens"]
        else:
            assert "n_tokens_step_by_step" not in report
    assert "single rows: reason=because I say so" in caplog.text and "tokens_step_by_step=" in caplog.text
    for name, trained in weights["trees"].items():
        worst = float((trained - weights["steps"][name]).abs().max())
        assert worst < 1e-6, f"{name}: {worst}"


def test_a_rank_without_rows_trains_on_blanks(tmp_path: Path) -> None:
    """A blank row among trees has depths and ends too."""
    encoder = _encoder(400)
    rows = build_rows([_episode(0)], encoder, lambda: True).rows
    loaded = Loaded(model=_small("llama", len(encoder.tokenizer)), tokenizer=encoder.tokenizer, name="small")
    plain = replace(rows[0], depths=None, ends=None)
    trainer = bc.make_bc_trainer([rows[0], plain], [0, 1], loaded, PHASE, tmp_path, 0)
    batch = next(iter(trainer.get_train_dataloader()))
    assert batch["ends"][1].tolist() == [len(plain.ids)] * len(plain.ids)
    assert batch["depths"][1].tolist() == list(range(len(plain.ids)))
