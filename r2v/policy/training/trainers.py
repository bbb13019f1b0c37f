"""Trainers: TRL's SFT and DPO on rows that are tokenised already.

Contexts are elided by `r2v.policy.prompt_encoder`, the same way in training and while acting, so TRL's own
preparation (rendering, cutting at max_length, dropping what it cut to nothing) must not touch them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from trl import DPOTrainer, SFTTrainer

from r2v.policy.prefix_tree import IGNORED, mask_for


def collate_trees(rows: Sequence[dict[str, list[int]]], pad_id: int) -> dict[str, torch.Tensor]:
    """Return the rows of a micro-batch, padded on the right; no token sees a pad."""
    longest = max(len(row["input_ids"]) for row in rows)
    fill = {"input_ids": pad_id, "labels": IGNORED, "depths": 0, "ends": 0}
    return {
        name: torch.tensor([row[name] + [value] * (longest - len(row[name])) for row in rows])
        for name, value in fill.items()
    }


class BCTrainer(SFTTrainer):  # type: ignore[misc]
    """Rows hold `input_ids` and `labels`; dataset_kwargs={"skip_prepare_dataset": True} leaves them unchanged.

    Rows that are prefix trees hold `depths` and `ends` too, and come through `collate_trees`.
    """

    def _set_signature_columns_if_needed(self) -> None:
        self._signature_columns = ["input_ids", "labels", "depths", "ends"]

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Return TRL's loss, each token of a tree seeing its own path."""
        if "ends" in inputs:
            inputs["attention_mask"] = mask_for(self.model, inputs.pop("ends"))
            inputs["position_ids"] = inputs.pop("depths")
        return super().compute_loss(model, inputs, *args, **kwargs)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write none: its dates and versions would be part of the artifact's content."""


@dataclass(frozen=True, kw_only=True)
class _Share:
    """Weight of a micro-batch in its update, in units of the mean over all micro-batches of all ranks: by rows,
    those without completions among them, and by chosen tokens."""

    rows: float
    blank: float
    tokens: float


class PairTrainer(DPOTrainer):  # type: ignore[misc]
    """Rows hold `prompt_ids`, `chosen_ids` and `rejected_ids`.

    TRL averages each part of the loss over a micro-batch, and micro-batches over an update: a pair, or a token of
    the likelihood, then weighs more the smaller its micro-batch is. Here both are means over the whole update,
    independent of micro-batches and ranks; pairs without completions do not count.
    """

    _shares: list[_Share] = []

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Return the micro-batches of an update, and record each one's share of it."""
        batches, items = super().get_batch_samples(*args, **kwargs)
        sizes = torch.tensor(
            [_sizes(batch["completion_mask"]) for batch in batches], dtype=torch.float64, device=self.accelerator.device
        )
        _, pairs, tokens = self.accelerator.gather(sizes.sum(0, keepdim=True)).sum(0).tolist()
        mean = len(batches) * self.accelerator.num_processes
        self._shares = [
            _Share(rows=rows / pairs * mean, blank=(rows - real) / pairs * mean, tokens=chosen / tokens * mean)
            for rows, real, chosen in sizes.tolist()
        ]
        return batches, items

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        """Return TRL's loss, each part weighted by the micro-batch's share in the update that is under way. A pair
        without completions has a DPO loss of ln 2, without a gradient, and no token for the likelihood."""
        if not self._shares:
            return super().compute_loss(*args, **kwargs)
        share = self._shares.pop(0)
        whole, weights = self.loss_types, self.loss_weights  # type: ignore[has-type]
        parts = list(zip(whole, weights, (share.rows, share.tokens), strict=False))[: 2 if share.tokens else 1]
        self.loss_types = [kind for kind, _, _ in parts]
        self.loss_weights = [weight * fraction for _, weight, fraction in parts]
        try:
            loss = super().compute_loss(*args, **kwargs)
        finally:
            self.loss_types, self.loss_weights = whole, weights
        return loss - weights[0] * share.blank * math.log(2) if share.blank else loss

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        return dataset

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write none, as BCTrainer."""

    def sigmoid_loss(self, batch: dict[str, Any]) -> torch.Tensor:
        """Return DPO's own part of the loss on one batch, without the likelihood term and without dropout:
        -log sigmoid(beta * (difference of the log-ratios)), averaged over pairs."""
        whole, training = (self.loss_types, self.loss_weights), self.model.training
        self.loss_types, self.loss_weights = ["sigmoid"], [1.0]
        self.model.eval()
        try:
            loss: torch.Tensor = self.compute_loss(self.model, self._prepare_inputs(batch))
        finally:
            self.loss_types, self.loss_weights = whole
            self.model.train(training)
            self._metrics["eval"].clear()
        return loss


def _sizes(completion_mask: torch.Tensor) -> tuple[int, int, int]:
    """Return the rows of a micro-batch, real pairs among them, and their chosen tokens."""
    chosen = completion_mask.chunk(2)[0].sum(1)
    return len(chosen), int((chosen > 0).sum()), int(chosen.sum())
