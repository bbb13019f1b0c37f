"""The pipeline on a Slurm cluster, with nothing left running: what is submitted heals itself."""
