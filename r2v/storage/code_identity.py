"""The identity of the code at work: what its files hold, the snapshot they lie in, the commit they were of.

An artifact records it (`artifact.json`, "code") and no fingerprint holds it, a stage's own version does: an edit that
changes no result makes nothing anew. Code that was submitted to Slurm lies in a snapshot
(`r2v.slurm.chain.snapshot`), a folder with `snapshot.json` beside the package, which knows the commit.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from r2v.storage.removal import SNAPSHOT_MARKER

OWN_PACKAGE = Path(__file__).resolve().parents[1]
SNAPSHOT_RECORD = SNAPSHOT_MARKER.file
"""What a snapshot says of itself."""


@cache
def code_identity() -> str:
    """12 hex digits of what R2V's Python and YAML files hold, as they were when this process first asked."""
    content = hashlib.sha256()
    for path in sorted((*OWN_PACKAGE.rglob("*.py"), *OWN_PACKAGE.rglob("*.yaml"))):
        content.update(f"{path.relative_to(OWN_PACKAGE).as_posix()}\0".encode())
        content.update(hashlib.sha256(path.read_bytes()).digest())
    return content.hexdigest()[:12]


@cache
def own_snapshot() -> Mapping[str, Any]:
    """What the snapshot says of itself that this process runs from; nothing where it runs from none."""
    try:
        found = json.loads((OWN_PACKAGE.parent / SNAPSHOT_RECORD).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@cache
def git_commit() -> str | None:
    """The commit R2V runs from; None where it is run neither from a checkout nor from a snapshot of one."""
    if own_snapshot():
        commit = own_snapshot().get("commit")
        return str(commit) if commit else None
    if not (OWN_PACKAGE.parent / ".git").exists():
        return None
    command = ["git", "-C", str(OWN_PACKAGE.parent), "rev-parse", "HEAD"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return answer.stdout.strip() or None
