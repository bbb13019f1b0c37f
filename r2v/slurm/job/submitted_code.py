"""Submitted and running code compared: a job logs a difference.

A job of a chain is pinned to a snapshot, unless it was submitted `--live`. A script given to sbatch directly is pinned
to nothing but its own text: edits between its submission and its start show in the files' times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from r2v.errors import R2VError
from r2v.log import logger
from r2v.slurm.chain.chain import Chain
from r2v.slurm.client import client
from r2v.slurm.job.command_line import config_file
from r2v.storage.artifact_manifest import OWN_PACKAGE, code_identity, git_commit, own_snapshot

_NAMED = 3
"""Maximum number of edited files in the log line."""


def tell_differences(job_id: str, chain: Chain | None, words: Sequence[str]) -> None:
    """Log a difference of code or configuration between the submission and now."""
    if own_snapshot():
        return
    by_hand = chain is None or job_id not in chain.slurm_ids
    commit = git_commit()
    if chain is not None and chain.commit not in (None, commit):
        submitted = str(chain.commit)[:12]
        logger.warning(
            "r2v job runs another commit than submitted: job=%s submitted=%s running=%s",
            *(job_id, submitted, str(commit)[:12]),
        )
    elif chain is not None and not by_hand and chain.code not in (None, code_identity()):
        logger.warning(
            "r2v job runs code edited since its submission: job=%s submitted=%s running=%s",
            *(job_id, chain.code, code_identity()),
        )
    elif by_hand and (edited := list(_edited_since_submission(job_id, words))):
        more = f" and {len(edited) - _NAMED} more" if len(edited) > _NAMED else ""
        logger.warning(
            "r2v job runs files edited since its submission (r2v run_all pins code): job=%s files=%s",
            *(job_id, ", ".join(edited[:_NAMED]) + more),
        )


def _edited_since_submission(job_id: str, words: Sequence[str]) -> Iterator[str]:
    try:
        when = datetime.fromisoformat(client.show(job_id).get("SubmitTime", "")).timestamp()
    except (R2VError, ValueError):  # a comparison of code is not worth a failed job
        return
    config = config_file(words)
    for path in (*sorted(OWN_PACKAGE.rglob("*.py")), *([Path(config)] if config else [])):
        with suppress(OSError):  # removed while it was listed
            if path.stat().st_mtime > when + 1.0:  # Slurm's times are whole seconds
                yield path.relative_to(OWN_PACKAGE.parent).as_posix() if path.is_relative_to(OWN_PACKAGE) else str(path)
