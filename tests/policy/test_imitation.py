"""The rivals of preference training learn one action of a state: the policy's own best, or the teacher's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from r2v.config import Phase
from r2v.data.episode import Action, Episode, EpisodeMetadata, Observation, Step
from r2v.errors import EmptyResult
from r2v.policy.candidates import CandidateAction, CandidateState
from r2v.policy.imitation import ShownAction, shown_actions, train_imitation
from r2v.policy.load import Loaded
from r2v.policy.preference import Pair, build_rows, mean_logps
from r2v.policy.prompt_encoder import Encoder
from r2v.policy.rehearsal import rehearsed
from r2v.policy.training_rows import steps_of
from r2v.wire.message import Message
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
    _state("e", _act(0, "x", 0.4), _act(1, "y", 0.0), teacher="r901"),
]


def test_rft_learns_what_won_and_dagger_what_the_teacher_does() -> None:
    """Nothing of another split, nothing that failed or that the teacher does better, nothing that obeys what was
    planted."""
    assert [(one.task_id, one.action) for one in shown_actions(STATES, "rft")] == [("a", '{"tool":"z"}')]
    assert [(one.task_id, one.action) for one in shown_actions(STATES[::-1], "dagger")] == [("a", '{"tool":"t"}')]


def test_of_a_task_each_action_is_learnt_once_where_it_is_shown_first() -> None:
    """A policy that says the same wrong thing nine times is shown the same way out nine times."""
    steps = [
        replace(
            _state("a", _act(0, "x", 0.0), teacher=tool),
            state_id=f"a/1#{step}",
            step_idx=step,
            prompt=(PROMPT[0],) * step,
        )
        for step, tool in ((10, "t"), (2, "t"), (3, "u"), (9, "u"), (1, "v"))
    ]
    found = shown_actions(steps, "dagger")
    assert [(one.action, len(one.prompt)) for one in found] == [
        ('{"tool":"v"}', 1),
        ('{"tool":"t"}', 2),
        ('{"tool":"u"}', 3),
    ]


PHASE = Phase(
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


def _base() -> Loaded:
    tokenizer = tiny_models.tokenizer()
    return Loaded(model=tiny_models.model(len(tokenizer), 0, torch.float32), tokenizer=tokenizer, name="base")


def _episode(number: int, steps: int) -> Episode:
    return Episode(
        episode_id=f"t{number}",
        success=True,
        metadata=EpisodeMetadata(task_id=f"t{number}", goal=f"open w{number}", benchmark="toy", split="train"),
        steps=tuple(
            Step(step_idx=t, observation=Observation(raw_text=f"w{t}"), action=Action(raw_text=f"get w{number}"))
            for t in range(steps)
        ),
    )


def test_so_many_cloned_actions_are_rehearsed_as_their_share_asks_for() -> None:
    cloned = [_episode(number, 1 + number % 3) for number in range(30)]

    def drawn(learnt: int, share: float, seed: int = 1) -> list[Episode]:
        found = rehearsed(cloned, learnt, share, seed)
        assert found == [episode for episode in cloned if episode in found], "in their order"
        return found

    for learnt, share, wanted in ((6, 0.5, 6), (6, 0.75, 18), (12, 0.25, 4)):
        assert wanted <= sum(len(episode.steps) for episode in drawn(learnt, share)) < wanted + 3
    assert drawn(6, 0.0) == drawn(0, 0.5) == []
    assert drawn(60, 0.9) == cloned, "all there are"
    assert drawn(6, 0.5) != drawn(6, 0.5, seed=2)


def test_what_is_rehearsed_is_kept_while_something_else_is_learnt(tmp_path: Path) -> None:
    """A policy that gets things learns to close one: what it did before is likelier where it is trained on too."""
    cloned = [_episode(number, 2) for number in range(8)]
    encoder = Encoder(tiny_models.tokenizer(), max_seq_len=64, reserve=6)
    shown = [ShownAction(prompt=PROMPT, action="close w2", task_id=f"t{i}") for i in range(8)]
    as_pairs = [
        Pair(prompt=prompt, chosen=action, rejected=action, task_id="t")
        for one in cloned
        for prompt, action in steps_of(one)
    ]
    rows, kept = build_rows(as_pairs, encoder)[0], {}
    for share in (0.0, 0.5):
        loaded, out = _base(), tmp_path / str(share)
        report = train_imitation(shown, "dagger", loaded, encoder, PHASE, out, seed=1, cloned=cloned, rehearsal=share)
        assert (report["n_examples"], report["n_rehearsed"]) == (8, 8 if share else 0)
        kept[share] = mean_logps(loaded, rows).chosen
    assert kept[0.5] > kept[0.0] + 1


def test_what_is_shown_becomes_likelier(tmp_path: Path) -> None:
    tokenizer, loaded, phase = tiny_models.tokenizer(), _base(), PHASE
    encoder = Encoder(tokenizer, max_seq_len=64, reserve=6)
    shown = [ShownAction(prompt=PROMPT, action=f"get w{i}", task_id=f"t{i // 2}") for i in range(8)]
    report = train_imitation(shown, "dagger", loaded, encoder, phase, tmp_path, seed=1)
    assert (report["n_examples"], report["n_tasks"], report["dropped"], report["n_rehearsed"]) == (8, 4, 0, 0)
    assert report["losses"][-1]["loss"] < report["losses"][0]["loss"]
    assert (tmp_path / "final" / "model.safetensors").exists()
    with pytest.raises(EmptyResult, match="longer than policy.max_seq_len 8"):
        train_imitation(
            shown, "rft", loaded, Encoder(tokenizer, max_seq_len=8, reserve=6), phase, tmp_path / "none", seed=1
        )
