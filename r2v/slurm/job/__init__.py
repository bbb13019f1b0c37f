"""The job: all that runs inside a Slurm job, or beside it."""
