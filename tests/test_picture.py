"""The picture of a report: Chromium draws the page, and a failure to draw is one line."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from r2v.envs.browser.chromium import PROGRAMS

SCRIPT = Path(__file__).parents[1] / "scripts" / "picture.py"


def drawn(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True, check=False)


@pytest.mark.skipif(not any(map(shutil.which, PROGRAMS)), reason="no Chromium; make browser installs Debian's")
def test_a_small_page_is_drawn_whole(tmp_path: Path) -> None:
    style = "margin: 0; background: linear-gradient(90deg, red 50%, blue 50%)"
    (tmp_path / "index.html").write_text(f'<!doctype html><body style="{style}; height: 100vh"></body>')
    done = drawn(str(tmp_path), str(tmp_path / "page.png"), "--size", "800x600")
    assert done.returncode == 0, done.stderr
    with Image.open(tmp_path / "page.png") as image:
        page = image.convert("RGB")
    assert page.size == (800, 600)
    assert [page.getpixel(at) for at in ((10, 300), (790, 300))] == [(255, 0, 0), (0, 0, 255)]


def test_what_is_no_report_is_one_line(tmp_path: Path) -> None:
    done = drawn(str(tmp_path), str(tmp_path / "page.png"))
    assert done.returncode == 3 and done.stderr.startswith("picture.py: ") and done.stderr.count("\n") == 1
    assert not (tmp_path / "page.png").exists()
