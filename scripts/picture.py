"""Make the picture of a report: its first screen, or a part of its page, as Chromium shows it.

make picture                                                    # docs/report.png, of results/report/mrp
python scripts/picture.py results/report/mrp docs/report.png --part verdicts
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from r2v.envs.browser.chromium import chromium_flags, find_chromium
from r2v.errors import R2VError

COLOURS = 128
"""A page has few colours, and a picture in a repository should be small."""


def picture(report: Path, output: Path, size: tuple[int, int], part: str | None) -> None:
    """Draw the first screen of a report's page, or one part of it, at a size in pixels.

    Raises UsageError without a Chromium, FileNotFoundError or CalledProcessError if it draws nothing.
    """
    text = (report / "index.html").read_text(encoding="utf-8")
    others = f"<style>nav, section:not(#{part}) {{ display: none }}</style></head>" if part else "</head>"
    with tempfile.TemporaryDirectory() as folder:
        page, drawn = Path(folder) / "index.html", Path(folder) / "page.png"
        page.write_text(text.replace("</head>", others, 1), encoding="utf-8")
        flags = ["--headless", "--hide-scrollbars", "--force-color-profile=srgb", f"--user-data-dir={folder}/profile"]
        where = [f"--window-size={size[0]},{size[1]}", f"--screenshot={drawn}", page.as_uri()]
        words = [str(find_chromium()), *chromium_flags(), *flags, *where]
        subprocess.run(words, check=True, capture_output=True, timeout=300)
        with Image.open(drawn) as image:
            image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(output, optimize=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the picture of a report.")
    parser.add_argument("report", type=Path, metavar="DIR", help="the report's folder, such as results/report/mrp")
    parser.add_argument("output", type=Path, metavar="FILE", help="the PNG to write")
    parser.add_argument("--size", default="1440x900", metavar="WxH", help="pixels (default: 1440x900)")
    parser.add_argument("--part", metavar="ID", help="section of the page to show (default: the first screen)")
    values = parser.parse_args()
    size = re.fullmatch(r"(\d+)x(\d+)", values.size)
    if size is None:
        parser.error(f"--size {values.size}: WIDTHxHEIGHT in pixels, such as 1200x900")
    try:
        picture(values.report, values.output, (int(size[1]), int(size[2])), values.part)
    except (R2VError, OSError, subprocess.SubprocessError) as error:
        print(f"picture.py: {error}", file=sys.stderr)
        return 3
    print(f"{values.output}: {values.output.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
