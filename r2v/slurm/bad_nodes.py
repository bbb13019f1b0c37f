"""Bad nodes: where GPUs, their links or their driver have failed lately; no job of this checkout goes there meanwhile.

    remember(root, "g1,g2", "uncorrectable ECC error")
    excluded(root)                                      # ["g1", "g2"], for three days

The list is `outputs/.chains/bad_nodes.json`, written under a lease; who has had a node repaired deletes its line.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from r2v.slurm.chain import now
from r2v.slurm.job_record import read_object
from r2v.storage.files import write_json
from r2v.storage.lease import lease
from r2v.storage.paths import CHAINS

BAD_NODES = CHAINS / "bad_nodes.json"
FORGOTTEN_AFTER = timedelta(days=3)
"""How long a node is avoided: most are drained and repaired by then."""


def remember(root: Path, nodes: str, line: str) -> None:
    """Avoid these nodes, as Slurm writes a list of them, from now on."""
    with lease(root / CHAINS / "bad_nodes.lease", wait=30.0):
        known = {**_known(root), nodes: {"at": now(), "line": line}}
        write_json(root / BAD_NODES, {"nodes": known})  # without a hash of itself, which an edit would break


def excluded(root: Path) -> list[str]:
    """The nodes to avoid now."""
    return list(_known(root))


def without_bad(root: Path, resources: Mapping[str, str]) -> dict[str, str]:
    """What a job asks for, bad nodes excluded beside those that it excludes itself."""
    own = [word for word in resources.get("exclude", "").split(",") if word]
    avoided = list(dict.fromkeys([*own, *excluded(root)]))
    return {**resources, "exclude": ",".join(avoided)} if avoided else dict(resources)


def _known(root: Path) -> dict[str, Any]:
    since = (datetime.fromisoformat(now()) - FORGOTTEN_AFTER).isoformat()
    nodes = (read_object(root / BAD_NODES) or {}).get("nodes")
    entries = nodes.items() if isinstance(nodes, dict) else ()
    return {name: entry for name, entry in entries if isinstance(entry, dict) and str(entry.get("at", "")) > since}
