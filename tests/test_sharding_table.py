"""benchmarks/sharding_table.py: one cell that no other test trains, and the table of the cells."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.sharding_table import ALONE, Cell, measured, run, table
from r2v.hrl.training.metrics import METRICS_FILE
from tests.hrl import trainers

CELL = Cell(placement="full", trained="4-bit", shards="zero2")


@pytest.mark.numerical
@pytest.mark.usefixtures("warm_ranks")
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("deepspeed", "bitsandbytes")),
    reason="deepspeed and bitsandbytes are not installed; pip install 'r2v[gpu]'",
)
def test_adapters_on_4_bit_copies_train_under_zero2_and_no_other_sharding(tmp_path: Path) -> None:
    """Stopped and resumed on two ranks, to the losses of one process."""
    model = trainers.model_at(tmp_path / "model")
    alone = replace(CELL, shards=ALONE)
    assert run(alone, tmp_path / alone.name, model) == ""
    refused = replace(CELL, shards="fsdp")
    reasons = measured([CELL, refused], tmp_path, model)
    assert "4-bit weights cannot be sharded" in reasons[refused]
    assert reasons[CELL] == "" and "| full | 4-bit | yes, " in "\n".join(table([CELL], reasons, tmp_path))


def test_a_cell_shows_its_difference_or_the_letter_of_its_reason(tmp_path: Path) -> None:
    cells = [replace(CELL, shards=shards) for shards in ("none", "zero3", "fsdp")]
    for cell, loss in zip((replace(CELL, shards=ALONE), *cells), (1.0, 1.0001, 1.5, 1.0), strict=True):
        (tmp_path / cell.name).mkdir()
        (tmp_path / cell.name / METRICS_FILE).write_text(json.dumps({"actor/loss": loss}))
    reasons = dict(zip(cells, ("", "", "hierarchical.shards=fsdp: refused"), strict=True))
    assert list(table(cells, reasons, tmp_path)) == [
        "| placement | trained | none | zero3 | fsdp |",
        "|---|---|---|---|---|",
        "| full | 4-bit | yes, 1e-04 | a | b |",
        "",
        "- a: a loss differs by 0.5 from that of one process",
        "- b: hierarchical.shards=...: refused",
    ]
