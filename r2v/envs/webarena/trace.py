"""Traces of an episode's network traffic, so that a job without sites can grade it again.

    <folder>/<digest of task, seed and actions>.har.gz     requests and responses in webarena-verified's format
    <folder>/<digest>.json                                 the task, the answer, and the live evaluators' reward

Left out are pictures, styles and scripts, response bodies other than JSON, login requests, pages opened by the live
evaluators, and the hosts of the sites. The child writes the files at the end of an episode; the same episode played
again writes the same names.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib
import json
import os
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any


def save_trace(recorded: Path, folder: Path, about: dict[str, Any], renamed: Callable[[str], str]) -> None:
    """Write the trace of a recorded episode to the folder, with `renamed` applied to the traffic."""
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps([about["task_id"], about["seed"], about["actions"]])
    name = hashlib.sha256(content.encode()).hexdigest()[:20]
    record = {key: about.get(key) for key in ("task_id", "seed", "answer", "reward", "fault")}
    trimmed = _trimmed(recorded, about["begun"], about["graded"])
    if trimmed is not None:
        text = renamed(json.dumps(trimmed))
        _write(folder / f"{name}.har.gz", gzip.compress(text.encode(), mtime=0))
        _write(folder / f"{name}.json", json.dumps({**record, "actions": len(about["actions"])}).encode())


def _trimmed(recorded: Path, begun: float, graded: Sequence[tuple[float, float]]) -> dict[str, Any] | None:
    """Return the part of a recording used for grading; None for an unreadable one, as after a browser's death."""
    trim = importlib.import_module("webarena_verified.core.utils.trim_network_logs").trim_har_file
    draft = recorded.with_suffix(".trimmed")
    try:
        trim(recorded, draft)
        har: dict[str, Any] = json.loads(draft.read_text())
    except (OSError, ValueError):
        return None
    finally:
        draft.unlink(missing_ok=True)
    entries = [entry for entry in har["log"]["entries"] if _is_agents(entry, begun, graded)]
    har["log"] = {**har["log"], "entries": entries}
    for entry in entries:
        headers = entry["request"]["headers"]
        entry["request"]["headers"] = [header for header in headers if header["name"].lower() != "host"]
        content = entry["response"].get("content", {})
        if "json" not in content.get("mimeType", ""):
            content.pop("text", None)
    return har


def _is_agents(entry: dict[str, Any], begun: float, graded: Sequence[tuple[float, float]]) -> bool:
    """True for the agent's requests: not part of the login, which precedes `begun`, nor of the evaluators."""
    sent = datetime.fromisoformat(entry["startedDateTime"].replace("Z", "+00:00")).timestamp()
    if sent < begun and entry["request"]["method"] != "GET":
        return False
    return not any(since - 0.002 <= sent <= until for since, until in graded)


def _write(path: Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    draft.write_bytes(content)
    draft.replace(path)
