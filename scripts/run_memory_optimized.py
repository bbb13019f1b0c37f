"""Hierarchical RL placed by the memory planner: no argument is needed. `r2v train_hierarchical ...` otherwise."""

import sys

from r2v.cli.main import main

if __name__ == "__main__":
    given = sys.argv[1:] or ["--config", "configs/hierarchical.yaml"]
    sys.exit(main(["train_hierarchical", *given]))
