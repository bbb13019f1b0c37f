"""What the tests of the browser share: whether this machine has one, and BrowserGym."""

from __future__ import annotations

import shutil
from importlib.util import find_spec

import pytest

from r2v.envs.browser.chromium import PROGRAMS

HAS_BROWSER = any(map(shutil.which, PROGRAMS)) and all(map(find_spec, ("browsergym", "miniwob")))
real_browser = pytest.mark.skipif(not HAS_BROWSER, reason="no chromium, or no extra [miniwob]: make browser")
