"""Shared parts of the browser tests: skip marks for a machine without a browser or BrowserGym."""

from __future__ import annotations

import shutil
from importlib.util import find_spec

import pytest

from r2v.envs.browser.chromium import PROGRAMS

HAS_BROWSER = any(map(shutil.which, PROGRAMS)) and all(map(find_spec, ("browsergym", "miniwob")))
real_browser = pytest.mark.skipif(not HAS_BROWSER, reason="no chromium, or no extra [miniwob]: make browser")
