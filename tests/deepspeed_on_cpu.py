"""DeepSpeed as tests use it: on the CPU, with nothing compiled."""

from __future__ import annotations

import os


def use_deepspeed_on_cpu() -> None:
    """Choose the CPU, and let no extension count as one that this machine can build. DeepSpeed would compile one for a
    minute that reduces over shared memory, which it uses only below its own launcher."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__ = {}
