"""Run an experiment: `python scripts/run_experiment.py --exp SPEC ...` is `r2v experiments run --exp SPEC ...`."""

import sys

from r2v.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["experiments", "run", *sys.argv[1:]]))
