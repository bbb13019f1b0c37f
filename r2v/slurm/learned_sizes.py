"""Learned sizes: the memory and the time that healing found a job to need, kept for resume and rerun.

    learn(root, "desk_noisy", "bc", {"mem": "200M"}, {"mem": "300M"})
    sized(root, "desk_noisy", "bc", {"mem": "200M"})                    # {"mem": "300M"}
    sized(root, "desk_noisy", "bc", {"mem": "250M"})                    # {"mem": "250M"}: the header was edited

A size is remembered beside what the header asked for then: whoever edits the header has the last word.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from r2v.slurm.chain import folder
from r2v.slurm.job_record import read_object
from r2v.storage.files import write_json
from r2v.storage.integrity import hashed

SIZES_FILE = "sizes.json"
SIZES = ("mem", "mem-per-cpu", "mem-per-gpu", "time")
"""Directives that are learned."""


def learn(root: Path, name: str, job: str, had: Mapping[str, str], given: Mapping[str, str]) -> None:
    """Keep what a job is given now in place of what it had. The caller holds the chain's lock."""
    known = _known(root, name)
    entry: dict[str, Any] = dict(known.get(job, {}))
    for key in SIZES:
        if key in given and given[key] != had.get(key):
            before = had.get(key, "")  # "" where the header leaves the size to the site
            asked = entry[key]["asked"] if entry.get(key, {}).get("given") == before else before
            entry[key] = {"asked": asked, "given": given[key]}
    if entry != known.get(job, {}):
        write_json(folder(root, name) / SIZES_FILE, hashed({"jobs": {**known, job: entry}}))


def sized(root: Path, name: str, job: str, directives: Mapping[str, str]) -> dict[str, str]:
    """What a header asks for, with the sizes that were learned under it."""
    entry = _known(root, name).get(job, {})
    learned = {key: one["given"] for key, one in entry.items() if directives.get(key, "") == one["asked"]}
    return {**directives, **learned}


def _known(root: Path, name: str) -> dict[str, Any]:
    return dict((read_object(folder(root, name) / SIZES_FILE) or {}).get("jobs", {}))
