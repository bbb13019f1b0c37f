"""Manage runs in the background: `python scripts/run_background.py --list` is `r2v experiments background --list`."""

import sys

from r2v.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["experiments", "background", *sys.argv[1:]]))
