"""`r2v cluster set`: the project's site profile and single directives, written into the headers.

set_words(["profile=nersc", "account=m1234"])       # another profile, then a directive of every header
set_words(["train_policy.mem=120G"])                # of one script
set_words([])                                       # scripts/slurm/site.yaml again, after an edit
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from r2v.errors import UsageError, nearest
from r2v.slurm import client, headers, write_headers


def set_words(words: Sequence[str], root: Path = Path()) -> list[Path]:
    """Do as KEY=VALUE words say; returns the files that changed. Raises UsageError before any is touched, but for a
    profile that then meets a directive which cannot be."""
    pairs = {key: value for key, equals, value in (word.partition("=") for word in words) if equals}
    if len(pairs) < len(words):
        raise UsageError(f"cluster set wants KEY=VALUE, each once; keys profile, {', '.join(headers.SETTABLE)}")
    profile = pairs.pop("profile", None)
    for key, value in pairs.items():
        _require_directive(key.rpartition(".")[2], value)
    changed = write_headers.write(root) if not words else []
    changed += write_headers.choose(profile, root) if profile is not None else []
    return list(dict.fromkeys([*changed, *headers.rewrite(headers.scripts(root), pairs)]))


def _require_directive(key: str, value: str) -> None:
    """Raises UsageError for a key that neither R2V nor the sbatch that is here knows."""
    if key in headers.SETTABLE:
        return
    if not client.present() or "unrecognized option" in client.test_only([f"--{key}={value}"]).line:
        raise UsageError(f"cluster set {key}={value}: {nearest(key, ('profile', *headers.SETTABLE))}")
