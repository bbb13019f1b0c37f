"""Imitation at the policy's own states: the rivals of preference training, which learn one action of a state.

- rft (rejection fine-tuning, a round of expert iteration): the policy's own sample that is worth most, where it is
  worth something and the teacher's action no more (RAFT, arXiv 2304.06767; ReST-EM, arXiv 2312.06585);
- dagger: what the teacher does there (Ross et al., arXiv 1011.0686). The states are those of the policy's roll-outs, so
  a mistake that it makes comes with the way out of it.

Both read the candidates, whose values were executed; no state of another split than train is learnt. A share of cloned
episodes is trained on beside them (`r2v.policy.rehearsal`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from r2v import distributed
from r2v.config import Phase
from r2v.data.action import parse_action
from r2v.errors import EmptyResult
from r2v.log import logger
from r2v.policy.bc import Collected, make_bc_trainer
from r2v.policy.candidates import CandidateAction, CandidateState
from r2v.policy.export import export
from r2v.policy.fit import draw_rows, fit, schedule
from r2v.policy.load import Loaded
from r2v.policy.prompt_encoder import Encoder
from r2v.policy.rehearsal import rehearsed
from r2v.policy.sharded_training import gather_model
from r2v.policy.training_rows import build_rows, step_row
from r2v.storage.files import write_json
from r2v.wire.message import Message

ImitationMethod = Literal["rft", "dagger"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownAction:
    """An action to learn, and what was seen before it."""

    prompt: tuple[Message, ...]
    action: str
    task_id: str


def shown_actions(states: Iterable[CandidateState], method: ImitationMethod) -> list[ShownAction]:
    """What a method learns from the training states that show it something, by task and step: of a task each action
    once. A policy in a loop is shown the same way out at each of its states, and would learn to say nothing else."""
    found: dict[tuple[str, str], ShownAction] = {}
    for state in sorted(states, key=lambda state: (state.task_id, state.step_idx, state.state_id)):
        action = _best_own(state) if method == "rft" else state.teacher
        if state.split == "train" and action is not None and _learnable(action, state):
            one = ShownAction(prompt=state.prompt, action=action.text, task_id=state.task_id)
            found.setdefault((state.task_id, action.canonical), one)
    return list(found.values())


def _best_own(state: CandidateState) -> CandidateAction | None:
    """The policy's sample of the highest value above 0, the likeliest of equals; None where the teacher's action is
    worth more: a mistake that somebody can mend is not to be learnt."""
    least = state.teacher.value or 0.0 if state.teacher else 0.0
    won = [one for one in state.candidates if one.value and one.value >= least]
    return max(won, key=lambda one: (one.value or 0.0, one.logprob_sum or 0.0, -one.k), default=None)


def _learnable(action: CandidateAction, state: CandidateState) -> bool:
    obeys = any(canary in action.text for canary in state.canaries)
    return bool(parse_action(action.text).action_type) and action.finish_reason == "stop" and not obeys


def train_imitation(
    shown: Sequence[ShownAction],
    method: ImitationMethod,
    loaded: Loaded,
    encoder: Encoder,
    phase: Phase,
    out: Path,
    *,
    seed: int,
    cloned: Collected = (),
    rehearsal: float = 0.0,
) -> dict[str, Any]:
    """Train the cloned policy `loaded` into `out`/final, resuming from `out`/checkpoint-latest; returns and writes the
    report (as rank 0; the others' is empty). `rehearsal`: the share of actions that come from `cloned` episodes. Raises
    EmptyResult where every row is too long."""
    built = [row for one in shown if (row := step_row(one.prompt, one.action, encoder)) is not None]
    learnt = [built[i] for i in draw_rows(len(built), phase.max_examples, seed)]
    if not learnt:
        raise EmptyResult(
            f"nothing to learn by {method}: {len(shown)} actions, all longer than policy.max_seq_len "
            f"{encoder.max_seq_len}; raise it"
        )
    again = build_rows(rehearsed(cloned, len(learnt), rehearsal, seed), encoder).rows
    rows = [*learnt, *again]
    order = schedule([len(row.ids) for row in rows], phase, seed)
    trainer = make_bc_trainer(rows, order, loaded, phase, out, seed)
    log = fit(trainer, "preference", out, [len(rows[i].ids) for i in order])
    loaded = gather_model(trainer, loaded)
    if distributed.rank():
        return {}
    losses = [{"step": entry["step"], "loss": round(entry["loss"], 6)} for entry in log if "loss" in entry]
    report = {
        "method": method,
        "n_examples": len(learnt),
        "n_rehearsed": sum(row.steps for row in again),
        "n_tasks": len({one.task_id for one in shown}),
        "dropped": len(shown) - len(built),
        "losses": losses,
        "final_loss": losses[-1]["loss"],
        "weights_sha256": export(loaded, out / "final"),
    }
    write_json(out / "imitation_report.json", report)
    logger.info(
        "  preference: %s on %d states of %d tasks, %d cloned actions rehearsed",
        *(method, len(learnt), report["n_tasks"], report["n_rehearsed"]),
    )
    return report
