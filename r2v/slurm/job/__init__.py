"""The job: code that runs inside a Slurm job, or alongside it."""
