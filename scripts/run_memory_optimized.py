"""Hierarchical RL placed by the memory planner: without `--config` it takes configs/hierarchical.yaml."""

import sys

from r2v.cli.main import main
from r2v.slurm.script_args import expand

if __name__ == "__main__":
    sys.exit(main(expand(["train_hierarchical", *sys.argv[1:]])))
