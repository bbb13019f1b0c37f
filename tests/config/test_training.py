"""Configuration of training: the choice of an optimizer."""

from __future__ import annotations

import sys

import pytest

from r2v.config import PhaseName, identity, load
from r2v.errors import UsageError


def test_an_optimizer_of_8_bits_is_in_fingerprints_and_the_default_is_not_whichever_way_it_was_written() -> None:
    usual = identity(load(None).training)
    assert "optimizer" not in usual["bc"] and identity(load(None, ["training.optimizer=adamw"]).training) == usual
    named = identity(load(None, ["training.optimizer=adamw_8bit"]).training)
    assert named == {phase: values | {"optimizer": "adamw_8bit"} for phase, values in usual.items()}


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["training.optimizer=paged_adamw_8bit", "training.zero=2"], "must be adamw with training.zero, "),
        (["training.optimizer=adamw_8bit", "training.fsdp=true"], "must be adamw with training.zero, "),
        (
            ["training.router.optimizer=adamw_8bit"],
            "unknown key training.router.optimizer",
        ),
        (["training.optimizer=lion"], "lion"),
    ],
)
def test_optimizers_that_cannot_be_are_refused(overrides: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load(None, overrides)


@pytest.mark.parametrize("phase", ["bc", "preference", "verifier"])
def test_without_bitsandbytes_an_8_bit_optimizer_is_refused_with_the_command_that_installs_it(
    phase: PhaseName, monkeypatch: pytest.MonkeyPatch
) -> None:
    eight = load(None, ["training.optimizer=adamw_8bit"]).training.phase(phase)
    usual = load(None).training.phase(phase)
    monkeypatch.delitem(sys.modules, "bitsandbytes", raising=False)
    monkeypatch.setattr(sys, "path", [])
    usual.require_optimizer()
    with pytest.raises(UsageError, match=r"adamw_8bit: bitsandbytes is not installed; pip install 'r2v\[gpu\]'"):
        eight.require_optimizer()
