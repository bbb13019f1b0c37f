"""Sources: the chain that a command means, among those present."""

from __future__ import annotations

from pathlib import Path

import pytest

from r2v.errors import UsageError
from r2v.slurm.chain import chain as chains
from r2v.slurm.chain.chain import Chain
from r2v.slurm.views.sources import chosen


def test_the_one_chain_needs_no_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no chain of jobs .*; submit one"):
        chosen(tmp_path, None)
    chains.write(tmp_path, Chain(name="desk_noisy", benchmark="desk", condition="noisy", config_sha="0f3c"))
    assert chosen(tmp_path, None) == "desk_noisy"
    with pytest.raises(UsageError, match="no chain desk_nosy; did you mean desk_noisy?"):
        chosen(tmp_path, "desk_nosy")
