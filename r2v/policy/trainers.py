"""TRL's trainers on rows that are tokenised already.

Contexts are elided by `r2v.policy.prompts`, the same way in training and while acting, so TRL's own
preparation (rendering, cutting at max_length, dropping what it cut to nothing) must not touch them.
"""

from __future__ import annotations

from typing import Any

import torch
from trl import DPOTrainer, SFTTrainer


class Cloner(SFTTrainer):  # type: ignore[misc]
    """Rows hold `input_ids` and `labels`; dataset_kwargs={"skip_prepare_dataset": True} leaves them alone."""

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """None: it holds dates and versions, and stands among the artifact's content."""


class Preferrer(DPOTrainer):  # type: ignore[misc]
    """Rows hold `prompt_ids`, `chosen_ids` and `rejected_ids`."""

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        return dataset

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """None: see Cloner."""

    def sigmoid_loss(self, batch: dict[str, Any]) -> torch.Tensor:
        """DPO's own part of the loss on one batch, without the likelihood beside it and without dropout:
        -log sigmoid(beta * (difference of the log-ratios)), averaged over pairs."""
        whole, training = (self.loss_types, self.loss_weights), self.model.training  # type: ignore[has-type]
        self.loss_types, self.loss_weights = ["sigmoid"], [1.0]
        self.model.eval()
        try:
            loss: torch.Tensor = self.compute_loss(self.model, self._prepare_inputs(batch))
        finally:
            self.loss_types, self.loss_weights = whole
            self.model.train(training)
            self._metrics["eval"].clear()
        return loss
