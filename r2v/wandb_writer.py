"""wandb's own process: reads the figures of a stage from a file as they come and gives them to wandb.

    python -m r2v.wandb_writer logs/wandb/curves-<id>.jsonl          # `r2v.log.in_wandb` starts it

It is apart from the stage, which it cannot hurt: where wandb raises, hangs or dies, this process does. Where the stage
was killed it ends the run as failed; the next attempt goes on with the same run.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_LOOK = 0.5
"""Seconds between two looks at the file."""


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """What the stage writes, until it ends or is gone."""
    stage = os.getppid()
    with path.open() as file:
        kept = ""
        while True:
            kept += file.readline()
            if kept.endswith("\n"):
                yield json.loads(kept)
                kept = ""
            elif os.getppid() != stage:
                yield {"end": 1}
            else:
                time.sleep(_LOOK)


def main() -> int:
    """Read the file named on the command line to its end."""
    import wandb

    source = lines(Path(sys.argv[1]))
    told = next(source)["run"]
    run = wandb.init(
        project=told["project"],
        name=told["job"],
        group=told["group"],
        id=told["id"],
        resume="allow" if told["mode"] == "online" else None,
        config=told["config"],
        mode=told["mode"],
        dir=told["folder"],
        settings=wandb.Settings(silent=True, console="off"),
    )
    for line in source:
        if "end" in line:
            run.finish(exit_code=line["end"])
            return 0
        run.log(line["log"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
