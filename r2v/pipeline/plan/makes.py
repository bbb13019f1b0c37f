"""What a job makes: itself, or, for an ablation study, every stage that each of its changes makes again.

Artifacts are found by fingerprint, so a chain makes only what differs from those before it: the keys here are the
fingerprints' own, of settings and inputs, without the contents that are not there yet.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

from r2v.config import Config, identity
from r2v.pipeline.graph import as_configured, upstream
from r2v.pipeline.jobs import JOBS, job

Make = tuple[str, Config]
"""A job's name and the configuration that it is made with."""


def makes_of(name: str, config: Config) -> list[Make]:
    """What the job of this name makes, each once; its own row where it makes no chains."""
    row = job(name)
    chains = row.load().chains(config)
    if not chains:
        return [(name, config)]
    last = row.remakes
    seen = {key for made, key, _ in _keys(config, last) if made != last}  # the chain's own jobs stand before it
    found = []
    for chain in chains:
        for made, key, one in _keys(chain, last):
            if key not in seen:
                seen.add(key)
                found.append((made, one))
    return found


def _keys(config: Config, last: str) -> Iterator[tuple[str, str, Config]]:
    """(job, what names its artifact, configuration) of a chain up to this job."""
    rows, keys = [as_configured(config, row) for row in JOBS], dict[str, str]()
    wanted = upstream([last], rows)
    for row in rows:
        if row.name not in wanted:
            continue
        inputs = [keys[name] for name in row.inputs]
        sections = identity(row.load().sections(config))
        content = json.dumps([row.name, sections, inputs], sort_keys=True)
        keys[row.name] = hashlib.sha256(content.encode()).hexdigest()
        yield row.name, keys[row.name], config
