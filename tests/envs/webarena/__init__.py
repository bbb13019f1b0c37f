"""Shared parts of the WebArena tests: skip marks for a machine without its child interpreter or a browser, and stub
sites."""

from __future__ import annotations

import shutil

import pytest

from r2v.envs.browser.chromium import PROGRAMS
from r2v.envs.webarena.home import is_installed

real_worlds = pytest.mark.skipif(
    not (is_installed() and any(map(shutil.which, PROGRAMS))),
    reason="no chromium, or no child interpreter of WebArena: make browser webarena",
)
listed = pytest.mark.skipif(not is_installed(), reason="no child interpreter of WebArena: make webarena")
