"""The runner by its former name: sbatch scripts that were in the queue when the code was upgraded start it so."""

from __future__ import annotations

import sys

from r2v.slurm.runner import main

if __name__ == "__main__":
    sys.exit(main())
