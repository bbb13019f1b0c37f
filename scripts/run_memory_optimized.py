"""Hierarchical RL placed by the memory planner.

python scripts/run_memory_optimized.py [--overrides KEY=VALUE ...]      takes configs/hierarchical.yaml
python scripts/run_memory_optimized.py gsm8k [--overrides ...]          takes configs/hierarchical/gsm8k.yaml
"""

import sys

from r2v.cli.main import main
from r2v.slurm.job.script_args import expand

if __name__ == "__main__":
    sys.exit(main(expand(["train_hierarchical", *sys.argv[1:]])))
