"""What the tests of WebArena share: whether this machine has its child interpreter and a browser, and stub sites."""

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
