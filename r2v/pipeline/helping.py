"""Helpers: further processes that play a stage's blocks beside the job that makes its artifact.

    r2v evaluate --config configs/mrp.yaml --overrides rollout.helpers=join   # any number, anywhere
    r2v evaluate --config configs/mrp.yaml --overrides rollout.helpers=4      # and four of them on this machine

A helper finds the attempt that its configuration and inputs name, takes blocks under leases like the stage itself
(`r2v.rollout.work_queue`), writes nothing but plays into the episode cache, and ends with 0 when nothing is left.
Nobody waits for it before it has begun; killed or absent, the result is the same.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from r2v.config import Config, to_yaml
from r2v.errors import UsageError
from r2v.llm.providers.keys import allowed_words
from r2v.llm.providers.spending.payer import paying
from r2v.log import logger
from r2v.pipeline.inputs import fingerprint_of, made_already, places_of
from r2v.pipeline.rows import JOIN, Job
from r2v.storage.artifact import ATTEMPT, Work
from r2v.storage.integrity import Artifact
from r2v.storage.record import FOLDER

PATIENCE = 60.0
"""Seconds that a helper waits for the stage to begin."""
_LOOKS = 1.0
"""Seconds between two looks."""


def is_helpable(config: Config, row: Job) -> bool:
    """Whether helpers may play beside this job."""
    return row.command.helped and unhelped(config, row) is None


def unhelped(config: Config, row: Job) -> str | None:
    """Why a stage that is helped elsewhere is played by one process here: a collection whose questions all go into the
    same provider batches. None where it is not."""
    if not getattr(row.load().sections(config), "in_one_block", False):
        return None
    mode = config.teacher.mode
    return f"teacher.mode={mode} is played by one process, because its batches are as wide as the collection"


def require_helpable(config: Config, row: Job) -> None:
    """Raises UsageError where a stage is played by one process."""
    if (why := unhelped(config, row)) is not None:
        count = config.rollout.helpers
        raise UsageError(
            f"{row.command.name}: rollout.helpers={count}: {why}; leave it out, or set teacher.mode=concurrent"
        )


def help_job(
    config: Config,
    row: Job,
    inputs: Mapping[str, Artifact],
    *,
    root: Path = Path(),
    patience: float = PATIENCE,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Play what is left of the attempt that makes this job's artifact. Raises UsageError as `require_helpable` does."""
    from r2v.rollout.work_queue import StageFinished  # all that plays episodes, which few stages need

    require_helpable(config, row)
    stage, key = row.load(), fingerprint_of(config, row, inputs, hash_weights=True)
    assert stage.play is not None, row.name
    folder = places_of(config, root).artifacts / f"{row.name}-{key}"
    waited = 0.0
    while not (folder / ATTEMPT).exists():
        if waited >= patience:
            logger.info("%-16s nothing to help with: %s has not begun", row.name, folder)
            return
        sleep(_LOOKS)
        waited += _LOOKS
    if made_already(config, row, key, root) is None:
        logger.info("%-16s helping", row.name)
        work = Work(folder=folder, fingerprint=key, inputs=inputs, root=root, helping=True)
        with suppress(StageFinished), paying(places_of(config, root).name):
            stage.play(stage.sections(config), work)
    logger.info("%-16s nothing is left to help with", row.name)


@contextmanager
def helpers(config: Config, row: Job, count: int, words: Sequence[str] = ()) -> Iterator[None]:
    """`count` helpers on this machine for the length of the block, stopped where it fails. `words`
    are further ones for their command line. Raises UsageError as `require_helpable` does."""
    if not count:
        yield
        return
    require_helpable(config, row)
    environment = {name: value for name, value in os.environ.items() if name != FOLDER}
    with tempfile.TemporaryDirectory(prefix="r2v-helpers-") as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(to_yaml(config))
        command = helper_command(row, path, words)
        started = [subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL) for _ in range(count)]
        try:
            yield
            _wait_for(started)
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait()


def helper_command(row: Job, config: Path, words: Sequence[str]) -> list[str]:
    """The command line of a helper on this machine, which may send the keys that this process may."""
    own = [sys.executable, "-m", "r2v", *row.argv, "--config", str(config), *words, *allowed_words()]
    return [*own, *JOIN]


def _wait_for(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Give helpers time to see that nothing is left."""
    deadline = time.monotonic() + PATIENCE
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
