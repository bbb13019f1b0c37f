"""Experience of failures that later submissions use: nodes to avoid, and memory and time that jobs proved to need.

    remember(root, "g1,g2", "uncorrectable ECC error")
    excluded(root)                                                      # ["g1", "g2"], for three days
    learn(root, "desk_noisy", "bc", {"mem": "200M"}, {"mem": "300M"})
    sized(root, "desk_noisy", "bc", {"mem": "200M"})                    # {"mem": "300M"}
    sized(root, "desk_noisy", "bc", {"mem": "250M"})                    # {"mem": "250M"}: the header was edited

Nodes are recorded per checkout, in `outputs/.chains/bad_nodes.json`, under a lease; delete the line of a repaired node.
A size is recorded per job with the header's value of that time, so that a later edit of the header overrides it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from r2v.slurm.chain.chain import folder, now
from r2v.slurm.chain.job_record import read_object
from r2v.storage.files import write_json
from r2v.storage.integrity import hashed
from r2v.storage.lease import lease
from r2v.storage.paths import CHAINS

BAD_NODES = CHAINS / "bad_nodes.json"
FORGOTTEN_AFTER = timedelta(days=3)
"""How long a node is avoided: most are drained and repaired by then."""
SIZES_FILE = "sizes.json"
SIZES = ("mem", "mem-per-cpu", "mem-per-gpu", "time")
"""The learned directives."""


def remember(root: Path, nodes: str, line: str) -> None:
    """Record a Slurm node list as bad, with the failure's line."""
    with lease(root / CHAINS / "bad_nodes.lease", wait=30.0):  # several jobs may fail on the node at once
        entries = {**_bad_nodes(root), nodes: {"at": now(), "line": line}}
        write_json(root / BAD_NODES, {"nodes": entries})  # without a hash of itself: people edit this file


def excluded(root: Path) -> list[str]:
    """Return the nodes to avoid now."""
    return list(_bad_nodes(root))


def without_bad(root: Path, resources: Mapping[str, str]) -> dict[str, str]:
    """Return a job's directives with bad nodes added to its own `exclude` list."""
    own = [word for word in resources.get("exclude", "").split(",") if word]
    avoided = list(dict.fromkeys([*own, *excluded(root)]))
    return {**resources, "exclude": ",".join(avoided)} if avoided else dict(resources)


def _bad_nodes(root: Path) -> dict[str, Any]:
    since = (datetime.fromisoformat(now()) - FORGOTTEN_AFTER).isoformat()
    nodes = (read_object(root / BAD_NODES) or {}).get("nodes")
    entries = nodes.items() if isinstance(nodes, dict) else ()
    return {name: entry for name, entry in entries if isinstance(entry, dict) and str(entry.get("at", "")) > since}


def learn(root: Path, name: str, job: str, had: Mapping[str, str], given: Mapping[str, str]) -> list[str]:
    """Record the sizes `given` to a job that `had` others; returns them as `mem=300M`. The caller holds the lock."""
    jobs = _sizes(root, name)
    entry: dict[str, Any] = dict(jobs.get(job, {}))
    grown = [key for key in SIZES if key in given and given[key] != had.get(key)]
    for key in grown:
        before = had.get(key, "")  # "" where the header leaves the size to the site
        header_value = entry[key]["asked"] if entry.get(key, {}).get("given") == before else before
        entry[key] = {"asked": header_value, "given": given[key]}
    if entry != jobs.get(job, {}):
        write_json(folder(root, name) / SIZES_FILE, hashed({"jobs": {**jobs, job: entry}}))
    return [f"{key}={given[key]}" for key in grown]


def sized(root: Path, name: str, job: str, directives: Mapping[str, str]) -> dict[str, str]:
    """Return a header's directives with the sizes learned while it had its present values."""
    entry = _sizes(root, name).get(job, {})
    learned = {key: size["given"] for key, size in entry.items() if directives.get(key, "") == size["asked"]}
    return {**directives, **learned}


def _sizes(root: Path, name: str) -> dict[str, Any]:
    return dict((read_object(folder(root, name) / SIZES_FILE) or {}).get("jobs", {}))
