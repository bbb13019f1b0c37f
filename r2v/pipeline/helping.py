"""Helpers: processes that play blocks of a stage in parallel with the job that makes its artifact.

    r2v evaluate --config configs/mrp.yaml --overrides rollout.helpers=join   # any number, anywhere
    r2v evaluate --config configs/mrp.yaml --overrides rollout.helpers=4      # and four of them on this machine

A helper finds the attempt of its configuration and inputs, leases blocks as the stage does (`r2v.rollout.work_queue`),
writes only plays into the episode cache, and exits with 0 when no block is left. The result is the same where a helper
is killed or never starts.
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
from r2v.llm.providers.spending.quota import paying
from r2v.log import logger
from r2v.pipeline.inputs import fingerprint_of, made_already, places_of
from r2v.pipeline.rows import JOIN, Job
from r2v.storage.artifact import ATTEMPT, Work
from r2v.storage.integrity import Artifact
from r2v.storage.record import FOLDER

PATIENCE = 60.0
"""Seconds that a helper waits for the stage to begin."""
_POLL = 1.0
"""Seconds between two checks for the attempt."""


def is_helpable(config: Config, row: Job) -> bool:
    """True if helpers may play blocks of this job."""
    return row.command.helped and unhelped(config, row) is None


def unhelped(config: Config, row: Job) -> str | None:
    """Return why this stage takes no helper under this configuration: a collection sends all its requests in the same
    provider batches. None where it takes helpers."""
    if not getattr(row.load().sections(config), "in_one_block", False):
        return None
    mode = config.teacher.mode
    return f"teacher.mode={mode} is played by one process, because its batches are as wide as the collection"


def require_helpable(config: Config, row: Job) -> None:
    """Raise UsageError where a stage takes no helper."""
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
    """Play the remaining blocks of this job's attempt, waiting up to `patience` seconds for it to begin. Raise
    UsageError as `require_helpable` does."""
    from r2v.rollout.work_queue import StageFinished  # imports all that plays episodes, which few stages need

    require_helpable(config, row)
    stage, key = row.load(), fingerprint_of(config, row, inputs, hash_weights=True)
    assert stage.play is not None, row.name
    folder = places_of(config, root).artifacts / f"{row.name}-{key}"
    waited = 0.0
    while not (folder / ATTEMPT).exists():
        if waited >= patience:
            logger.info("helper ended, stage has not begun: stage=%s folder=%s", row.name, folder)
            return
        sleep(_POLL)
        waited += _POLL
    if made_already(config, row, key, root) is None:
        logger.info("helper started: stage=%s", row.name)
        work = Work(folder=folder, fingerprint=key, inputs=inputs, root=root, helping=True)
        with suppress(StageFinished), paying(places_of(config, root).name):
            stage.play(stage.sections(config), work)
    logger.info("helper ended, no block is left: stage=%s", row.name)


@contextmanager
def helpers(config: Config, row: Job, count: int, words: Sequence[str] = ()) -> Iterator[None]:
    """Run `count` helpers on this machine during the with block, and stop them if it fails. `words` are added to their
    command line. Raise UsageError as `require_helpable` does."""
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
    """Return the command line of a helper on this machine, with this process's permission to send keys."""
    own = [sys.executable, "-m", "r2v", *row.argv, "--config", str(config), *words, *allowed_words()]
    return [*own, *JOIN]


def _wait_for(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait up to `PATIENCE` seconds for the helpers to find no block and exit."""
    deadline = time.monotonic() + PATIENCE
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
