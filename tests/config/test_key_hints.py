"""Hints for unknown keys: what other tools call a key, a key of another section, a misspelt one."""

from __future__ import annotations

from pathlib import Path

import pytest

from r2v.config import keys, load
from r2v.config.key_hints import SYNONYMS, key_hint
from r2v.errors import UsageError

HINTS = {
    "training.learning_rate": "training.lr",
    "training.bc.learning_rate": "training.bc.lr",
    "learning_rate": "training.lr or hierarchical.lr",
    "training.epochs": "training.num_epochs",
    "epochs": "training.num_epochs",
    "training.output_dir": "prefix",
    "output_dir": "prefix",
    "training.batch": "training.batch_size",
    "inference.max_tokens": "inference.max_new_tokens",
    "policy.max_tokens": "policy.max_seq_len",
    "max_tokens": "teacher.max_tokens or inference.max_new_tokens or policy.max_seq_len",
    "policy.lr": "training.lr or hierarchical.lr",
    "trainning.learning_rate": "training.lr",
    "perturbations.latncy.prob": "perturbations.latency.prob",
    "data.seed": "data.seeds",
    "policy.lorar": "policy.lora_r",
}


@pytest.mark.parametrize(("key", "meant"), HINTS.items())
def test_an_unknown_key_is_answered_with_the_one_that_was_meant(key: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"unknown key {key}; did you mean {meant}\\?"):
        load(None, [f"{key}=1"])


def test_a_file_is_answered_as_an_override_is(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("training: {learning_rate: 1e-3}")
    with pytest.raises(UsageError, match=r"unknown key training.learning_rate; did you mean training.lr\?"):
        load(tmp_path / "config.yaml")


def test_every_synonym_stands_for_keys_that_there_are() -> None:
    own = {key.rpartition(".")[2] for key in keys()}
    assert {meant for names in SYNONYMS.values() for meant in names} <= own
    assert key_hint("nothing_like_it", ["a", "b"]) == "allowed: a, b"
