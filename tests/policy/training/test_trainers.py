"""The loss of long rows over a large vocabulary: computed in tiles, it equals the one of whole logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from r2v.config import load
from r2v.policy.load import Loaded
from r2v.policy.prefix_tree import IGNORED
from r2v.policy.training.bc import make_bc_trainer
from r2v.policy.training.rows import TrainingRow
from tests import tiny_models

VOCABULARY = 40_000
"""More tokens than a tile is wide."""


@pytest.mark.numerical
def test_the_cloning_loss_in_tiles_and_its_gradients_are_those_of_whole_logits(tmp_path: Path) -> None:
    torch.manual_seed(0)
    texts = [torch.randint(3, VOCABULARY, (length,)).tolist() for length in (90, 60, 75)]
    rows = [TrainingRow(ids, [IGNORED] * 20 + ids[20:], 1, 0) for ids in texts]
    model = tiny_models.model(VOCABULARY, dtype=torch.float32)
    loaded = Loaded(model=model, tokenizer=tiny_models.tokenizer(), name="random")
    phase = load(None, ["training.batch_size=3"]).training.phase("bc")
    trainer = make_bc_trainer(rows, [0, 1, 2], loaded, phase, tmp_path, 0)
    batch = next(iter(trainer.get_train_dataloader()))
    model.train()
    loss = trainer.compute_loss(model, batch)
    loss.backward()
    tiled = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    model.zero_grad()
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
    targets = batch["labels"][:, 1:].flatten()
    plain = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets, ignore_index=IGNORED)
    plain.backward()
    torch.testing.assert_close(loss, plain, rtol=1e-6, atol=0)
    for name, weight in model.named_parameters():
        torch.testing.assert_close(tiled[name], weight.grad, rtol=1e-4, atol=1e-7)
