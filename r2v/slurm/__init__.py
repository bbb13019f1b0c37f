"""The pipeline on a Slurm cluster: no process stays behind, and failed jobs are healed by the jobs themselves."""
