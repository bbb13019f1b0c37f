"""Home: where `r2v swebench install` puts the bundled set of instances, and what grading needs.

instances.jsonl     the bundled set, in SWE-bench's format; written last
repositories/       one git repository a package, a commit an instance
site/               pytest, for the tests of a repository in the sandbox
grading/            the package swebench alone, whose functions grade
"""

from __future__ import annotations

import os
from pathlib import Path

from r2v.errors import UsageError

BUNDLED_SET = "bundled"
"""The name of the bundled set of instances."""
SET_VERSION = "1"
"""Of recipes and installer together."""
INSTALL_COMMAND = "r2v swebench install"


def swebench_home() -> Path:
    """The folder, below the user's data; nothing is made."""
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "r2v" / f"swebench-{SET_VERSION}"


def bundled_instances() -> Path:
    """The file of the bundled set. Raises UsageError where it is not installed."""
    path = swebench_home() / "instances.jsonl"
    if not path.exists():
        raise UsageError(
            f"env.benchmark=swebench: the bundled instances are not installed here ({path}); run `{INSTALL_COMMAND}`"
        )
    return path


def test_site() -> Path | None:
    """The folder with pytest that a sandbox sees; None where it is not installed."""
    path = swebench_home() / "site"
    return path if path.is_dir() else None
