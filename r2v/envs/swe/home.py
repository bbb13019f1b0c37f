"""Home folder of SWE-bench, filled by `r2v swebench install` with the bundled instances and the grading package.

instances.jsonl     the bundled set, in SWE-bench's format; written last
repositories/       one git repository per package, one commit per instance
site/               pytest, for the tests of a repository in the sandbox
grading/            the package swebench alone, for its grading functions
"""

from __future__ import annotations

import os
from pathlib import Path

from r2v.errors import UsageError

BUNDLED_SET = "bundled"
"""Name of the bundled set of instances."""
SET_VERSION = "1"
"""Version of recipes and installer together."""
INSTALL_COMMAND = "r2v swebench install"


def swebench_home() -> Path:
    """Return the home folder, below XDG_DATA_HOME, without creating it."""
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "r2v" / f"swebench-{SET_VERSION}"


def bundled_instances() -> Path:
    """Return the file of the bundled set. Raises UsageError if it is not installed."""
    path = swebench_home() / "instances.jsonl"
    if not path.exists():
        raise UsageError(
            f"env.benchmark=swebench: the bundled instances are not installed here ({path}); run `{INSTALL_COMMAND}`"
        )
    return path


def test_site() -> Path | None:
    """Return the folder with pytest that the sandbox mounts, None if it is not installed."""
    path = swebench_home() / "site"
    return path if path.is_dir() else None
