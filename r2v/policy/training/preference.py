"""Preference training by the DPO loss: make the better of two actions at the same state likelier.

    L = -log sigmoid(beta * [(log pi(a+) - log ref(a+)) - (log pi(a-) - log ref(a-))])  +  w * NLL(a+)

The reference is the cloned policy itself, so before the first update L's first part is ln 2; anything else
means a wrong reference, and training refuses to start. DPO can lower both log-probs when the two actions are
alike; the likelihood term counters that, and the report's `chosen_logp` shows it.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from r2v import distributed
from r2v.config import Phase, PreferenceConfig
from r2v.errors import EmptyResult, InputError
from r2v.log import logger
from r2v.policy.export import export
from r2v.policy.load import Loaded
from r2v.policy.prompt_encoder import Encoder
from r2v.policy.sharded_loading import agree_on_dtypes, reference_of, whole_on
from r2v.policy.training.fit import arguments, draw_rows, fit, pad_for_ranks, schedule
from r2v.policy.training.sharded_training import gather_model, is_sharded
from r2v.storage.files import write_json
from r2v.wire.message import Message

_MEASURED_PAIRS = 256
_FALL = 0.1
_SERIES = {
    "loss": "loss",
    "margin": "rewards/margins",
    "accuracy": "rewards/accuracies",
    "chosen_logp": "logps/chosen",
    "rejected_logp": "logps/rejected",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Two actions at one state, the better one first."""

    prompt: tuple[Message, ...]
    chosen: str
    rejected: str
    task_id: str


@dataclass(frozen=True, slots=True)
class PairRow:
    """A pair in tokens; both completions whole, their end tokens included."""

    prompt: list[int]
    chosen: list[int]
    rejected: list[int]

    def __len__(self) -> int:
        return len(self.prompt) + max(len(self.chosen), len(self.rejected))


BLANK = PairRow([0, 0], [], [])
"""Padding row: a pair without completions, which `PairTrainer` leaves out of the loss."""


def read_pairs(path: Path) -> list[Pair]:
    """Return the pairs of a preference_pairs.jsonl. Raises InputError naming file and line."""
    pairs = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            row = json.loads(line)
            prompt = tuple(Message(role=m["role"], content=m["content"]) for m in row["prompt"])
            pairs.append(Pair(prompt=prompt, chosen=row["chosen"], rejected=row["rejected"], task_id=row["task_id"]))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}:{number}: not a preference pair ({error}); run candidates again") from None
    return pairs


def build_rows(pairs: Iterable[Pair], encoder: Encoder) -> tuple[list[PairRow], int]:
    """Return rows in tokens, contexts elided as while acting, and the number of pairs that were too long even so."""
    rows, dropped = [], 0
    for pair in pairs:
        chosen, rejected = encoder.action_ids(pair.chosen), encoder.action_ids(pair.rejected)
        try:
            prompt = encoder.prompt(pair.prompt, reserve=max(len(chosen), len(rejected), encoder.reserve))
        except InputError:  # too long even elided
            dropped += 1
            continue
        rows.append(PairRow(list(prompt.ids), chosen, rejected))
    return rows, dropped


def train_preference(
    pairs: Sequence[Pair],
    loaded: Loaded,
    encoder: Encoder,
    phase: Phase,
    preference: PreferenceConfig,
    out: Path,
    *,
    seed: int,
) -> dict[str, Any]:
    """Train the cloned policy `loaded` into `out`/final, resuming from `out`/checkpoint-latest; write and return
    the report (empty on ranks other than 0). Raises EmptyResult without pairs."""
    built, dropped = build_rows(pairs, encoder)
    rows = [built[i] for i in draw_rows(len(built), phase.max_examples, seed)]
    if not rows:
        raise EmptyResult(
            f"no preference pair to train on ({len(pairs)} given, {dropped} too long); lower "
            "preference.min_margin, or sample more with candidates.num_tasks"
        )
    order = schedule([len(row) for row in rows], phase, seed)
    trainer = make_trainer([rows[i] for i in order], loaded, phase, preference, out, seed)
    measured = rows[:_MEASURED_PAIRS]
    before, first = _before_training(trainer, loaded, measured)
    log = fit(trainer, "preference", out, [len(rows[i]) for i in order])
    loaded = gather_model(trainer, loaded)
    if distributed.rank():
        return {}
    after = mean_logps(loaded, measured)
    report = {
        "n_pairs": len(rows),
        "n_tasks": len({pair.task_id for pair in pairs}),
        "pairs_dropped": dropped,
        "first_loss": round(first, 6),
        "before": before.summary(),
        "after": after.summary(),
        "reward_margin": round(preference.beta * (after.margin - before.margin), 6),
        "warnings": _warnings(before, after),
        "log": [
            {"step": entry["step"], **{short: round(entry[name], 6) for short, name in _SERIES.items()}}
            for entry in log
            if "rewards/margins" in entry
        ],
        "weights_sha256": export(loaded, out / "final"),
    }
    write_json(out / "dpo_report.json", report)
    logger.info(
        "  preference trained: pairs=%d tasks=%d reward_margin=%+.4f",
        *(len(rows), report["n_tasks"], report["reward_margin"]),
    )
    for warning in _warnings(before, after):
        logger.warning("  preference training is suspect: reason=%s", warning)
    return report


def make_trainer(
    rows: Sequence[PairRow], loaded: Loaded, phase: Phase, preference: PreferenceConfig, out: Path, seed: int
) -> Any:
    """Return TRL's DPO trainer over rows in the order given. A full model gets a frozen copy of itself as reference; a
    PeftModel's reference is a frozen copy of its adapter, which TRL makes."""
    from datasets import Dataset
    from trl import DPOConfig

    from r2v.policy.training.trainers import PairTrainer

    laid = [BLANK if i is None else rows[i] for i in pad_for_ranks(range(len(rows)), phase, distributed.ranks())]
    data = Dataset.from_dict(
        {
            "prompt_ids": [row.prompt for row in laid],
            "chosen_ids": [row.chosen for row in laid],
            "rejected_ids": [row.rejected for row in laid],
        }
    )
    with_likelihood = preference.sft_weight > 0
    args = DPOConfig(
        **arguments(phase, out, len(rows), loaded.model, seed),
        beta=preference.beta,
        loss_type=["sigmoid", "sft"] if with_likelihood else ["sigmoid"],
        loss_weights=[1.0, preference.sft_weight] if with_likelihood else [1.0],
    )
    if phase.fsdp:
        agree_on_dtypes(loaded.model)
    reference = None
    if not hasattr(loaded.model, "peft_config"):
        copied = reference_of if phase.fsdp else copy.deepcopy
        reference = copied(loaded.model).eval().requires_grad_(False)
    return PairTrainer(
        model=loaded.model, processing_class=loaded.tokenizer, train_dataset=data, ref_model=reference, args=args
    )


def _before_training(trainer: Any, loaded: Loaded, rows: Sequence[PairRow]) -> tuple[Logps, float]:
    """Return the pairs' log-probabilities and DPO's loss before any update. Under FSDP rank 0 alone has the whole
    policy, on its CPU, and the other ranks' figures mean nothing."""
    if not trainer.is_fsdp_enabled:
        first = _first_sharded_loss(trainer, loaded, rows[:16]) if is_sharded(trainer) else _first_loss(trainer)
        return mean_logps(loaded, rows), first
    reference = None
    if trainer.ref_model is not None:  # sharded: all ranks must run it
        reference = mean_logps(replace(loaded, model=trainer.ref_model), rows[:16])
    if distributed.rank():
        return Logps(0.0, 0.0, 0.0), 0.0
    with whole_on(loaded.model, trainer.args.device):
        return mean_logps(loaded, rows), _first_sharded_loss(trainer, loaded, rows[:16], reference)


def _first_loss(trainer: Any) -> float:
    """Return DPO's loss before any update, which is ln 2 if and only if the reference is the policy."""
    with torch.no_grad():
        return _near_ln2(trainer, float(trainer.sigmoid_loss(next(iter(trainer.get_train_dataloader())))))


def _first_sharded_loss(trainer: Any, loaded: Loaded, rows: Sequence[PairRow], reference: Logps | None = None) -> float:
    """Return the same for sharded weights, by the formula and on the mean of a few pairs: TRL's forward expects sharded
    weights, and the policy's are sharded only when training begins (the reference's are already)."""
    from trl.trainer.utils import use_adapter

    if reference is None:
        with nullcontext() if trainer.ref_model is not None else use_adapter(loaded.model, "ref"):
            reference = mean_logps(replace(loaded, model=trainer.ref_model or loaded.model), rows)
    gained = mean_logps(loaded, rows).margin - reference.margin
    return _near_ln2(trainer, math.log1p(math.exp(-trainer.beta * gained)))


def _near_ln2(trainer: Any, loss: float) -> float:
    tolerance = 5e-3 if trainer.args.bf16 else 1e-3
    assert abs(loss - math.log(2)) < tolerance, f"DPO starts at {loss:.6f}, not at ln 2: not the right reference"
    return loss


@dataclass(frozen=True, slots=True)
class Logps:
    """Mean log-probability (nats, summed over tokens) of chosen and rejected actions, and the share of pairs
    in which the chosen one is likelier."""

    chosen: float
    rejected: float
    accuracy: float

    @property
    def margin(self) -> float:
        """Log-probability of the chosen action less that of the rejected one."""
        return self.chosen - self.rejected

    def summary(self) -> dict[str, float]:
        """Return both means and the share as fields of dpo_report.json, rounded to 6 decimals."""
        return {
            "chosen_logp": round(self.chosen, 6),
            "rejected_logp": round(self.rejected, 6),
            "accuracy": round(self.accuracy, 6),
        }


def mean_logps(loaded: Loaded, rows: Sequence[PairRow]) -> Logps:
    """Return the mean log-probabilities of these pairs under the model."""
    loaded.model.eval()
    chosen = [_logp(loaded.model, row.prompt, row.chosen) for row in rows]
    rejected = [_logp(loaded.model, row.prompt, row.rejected) for row in rows]
    return Logps(
        sum(chosen) / len(rows),
        sum(rejected) / len(rows),
        sum(c > r for c, r in zip(chosen, rejected, strict=True)) / len(rows),
    )


def _logp(model: Any, prompt: list[int], completion: list[int]) -> float:
    ids = torch.tensor([prompt + completion], device=model.device)
    with torch.no_grad():
        logits = model(input_ids=ids, logits_to_keep=len(completion) + 1).logits[0, :-1]
    return float(logits.double().log_softmax(-1).gather(-1, ids[0, -len(completion) :, None]).sum())


def _warnings(before: Logps, after: Logps) -> list[str]:
    if after.chosen < before.chosen - _FALL * abs(before.chosen):
        return [
            f"chosen log-prob fell from {before.chosen:.3f} to {after.chosen:.3f}: pairs too alike, or too many "
            "epochs; raise preference.sft_weight"
        ]
    return []
