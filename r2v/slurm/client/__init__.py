"""The Slurm client: every call of Slurm's commands, and the submission of a chain's jobs."""
