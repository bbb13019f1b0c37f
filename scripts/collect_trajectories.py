"""Collect teacher trajectories: `python scripts/collect_trajectories.py --config FILE ...` is `r2v collect ...`."""

import sys

from r2v.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["collect", *sys.argv[1:]]))
