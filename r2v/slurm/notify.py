"""Notification: a failure that a sentinel could not heal is told to whom the site profile names.

Slurm writes the mail: a sentinel ends with 1 where it could not heal, and has asked for a mail where it fails, so an
attempt that was healed writes none. The webhook is one POST of JSON to the URL in the variable that the profile names;
its address is a secret and stands in no file and no log.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from pathlib import Path

from r2v.log import logger
from r2v.slurm import chain as chains
from r2v.slurm.site_profile import project_profile

TIMEOUT = 20.0
"""Seconds that a webhook may take."""


def tell(name: str, job: str, root: Path = Path()) -> int:
    """Tell of a job's latest attempt where it has failed for good; returns the exit code with which its sentinel makes
    Slurm write a mail, 0 for none."""
    site = project_profile(root)
    if not (site.mail or site.webhook):
        return 0
    entry = chains.read(root, name).jobs[job]
    latest = entry.latest
    if latest is None or latest.failure is None or entry.planned is not None:
        return 0
    failure = latest.failure
    told = {"chain": name, "job": job, "id": latest.id, "kind": failure.kind, "line": failure.line}
    if url := os.environ.get(site.webhook or " "):
        _post(url, {**told, "action": failure.action, "text": f"r2v {name}: {job} failed ({failure.kind})"})
    return 1 if site.mail else 0


def _post(url: str, value: dict[str, str]) -> None:
    body = json.dumps(value).encode()
    try:
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=TIMEOUT):
            pass
    except (OSError, ValueError, urllib.error.URLError) as error:
        logger.warning("r2v: the webhook was not told (%s)", type(error).__name__)
