"""The rivals of preference training learn one action of a state: the policy's own best, or the teacher's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from r2v.config import Phase
from r2v.errors import EmptyResult
from r2v.llm.types import Message
from r2v.policy.candidates import CandidateAction, CandidateState
from r2v.policy.imitation import ShownAction, shown_actions, train_imitation
from r2v.policy.load import Loaded
from r2v.policy.prompt_encoder import Encoder
from tests import tiny_models

pytestmark = pytest.mark.numerical

PROMPT = (Message(role="user", content="open w1"), Message(role="tool", content="w2 w3"))


def _act(k: int, tool: str, value: float | None, logprob: float = -1.0) -> CandidateAction:
    text = f'{{"tool":"{tool}"}}'
    return CandidateAction(k=k, text=text, canonical=text, value=value, logprob_sum=logprob)


def _state(name: str, *candidates: CandidateAction, teacher: str | None = None, split: str = "train") -> CandidateState:
    return CandidateState(
        state_id=name,
        task_id=name,
        split=split,
        step_idx=0,
        context_sha256=name,
        prompt=PROMPT,
        candidates=candidates,
        teacher=_act(-1, teacher, 1.0) if teacher else None,
        canaries=("r901",),
    )


STATES = [
    _state("a", _act(0, "x", 0.5), _act(1, "y", 1.0, -3.0), _act(2, "z", 1.0, -2.0), teacher="t"),
    _state("b", _act(0, "x", 0.0), _act(1, "y", None), teacher="r901"),
    _state("c", _act(0, "x", 1.0), teacher="t", split="calibration"),
    _state("d", _act(0, "r901", 1.0), _act(1, "w", 0.5)),
]


def test_rft_learns_what_won_and_dagger_what_the_teacher_does() -> None:
    """Nothing of another split, nothing that failed, nothing that obeys what was planted."""
    assert [(one.task_id, one.action) for one in shown_actions(STATES, "rft")] == [("a", '{"tool":"z"}')]
    assert [(one.task_id, one.action) for one in shown_actions(STATES[::-1], "dagger")] == [("a", '{"tool":"t"}')]


def test_what_is_shown_becomes_likelier(tmp_path: Path) -> None:
    phase = Phase(
        num_epochs=6,
        lr=5e-3,
        batch_size=4,
        gradient_accumulation_steps=1,
        weight_decay=0.0,
        warmup_ratio=0.0,
        grad_clip=1.0,
        save_steps=1000,
        max_examples=None,
    )
    tokenizer = tiny_models.tokenizer()
    loaded = Loaded(model=tiny_models.model(len(tokenizer), 0, torch.float32), tokenizer=tokenizer, name="base")
    encoder = Encoder(tokenizer, max_seq_len=64, reserve=6)
    shown = [ShownAction(prompt=PROMPT, action=f"get w{i}", task_id=f"t{i // 2}") for i in range(8)]
    report = train_imitation(shown, "dagger", loaded, encoder, phase, tmp_path, seed=1)
    assert (report["n_examples"], report["n_tasks"], report["dropped"]) == (8, 4, 0)
    assert report["losses"][-1]["loss"] < report["losses"][0]["loss"]
    assert (tmp_path / "final" / "model.safetensors").exists()
    with pytest.raises(EmptyResult, match="longer than policy.max_seq_len 8"):
        train_imitation(
            shown, "rft", loaded, Encoder(tokenizer, max_seq_len=8, reserve=6), phase, tmp_path / "none", seed=1
        )
