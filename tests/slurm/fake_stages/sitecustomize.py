"""Site customization, first on a drill's PYTHONPATH: replace the stages' bodies where `r2v <stage> ...` begins. A stage
begins in a process of its own (`python -m r2v`) or in a fork of the runner, which becomes one by `runpy`."""

import runpy
import sys
from typing import Any

_run_module = runpy.run_module


def _stand_in(words: list[str]) -> None:
    from tests.slurm.drill_stage import COMMANDS, install

    if words and words[0] in COMMANDS:
        install()


def _run(name: str, *rest: Any, **named: Any) -> Any:
    if name == "r2v":
        _stand_in(sys.argv[1:])
    return _run_module(name, *rest, **named)


runpy.run_module = _run  # type: ignore[assignment]
if sys.orig_argv[1:3] == ["-m", "r2v"]:
    _stand_in(sys.orig_argv[3:])
