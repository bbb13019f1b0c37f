"""The weights shipped with R2V are those that results name, whatever name they are loaded by."""

from __future__ import annotations

import hashlib

from r2v.storage.weights import BUNDLED


def test_the_shipped_base_is_the_one_that_results_name() -> None:
    """An artifact names its base "tiny", not its weights: another base needs another name, or new versions of the
    stages that read it."""
    weights = hashlib.sha256((BUNDLED["tiny"] / "model.safetensors").read_bytes()).hexdigest()
    assert weights == "cbb687cf498758630063b4921bc86fe856316d87c1d29bd66f66237d18d452c1"


def test_the_shipped_toy_policy_is_the_one_that_results_name() -> None:
    """An artifact names it "toy", not its weights: another one needs another name, or new versions of the stages
    that read it."""
    weights = hashlib.sha256((BUNDLED["toy"] / "model.safetensors").read_bytes()).hexdigest()
    assert weights == "d15b93843ad922ae7d3a00bbb0ac88dc1a448c46b57ee835ffe7999448f37565"
