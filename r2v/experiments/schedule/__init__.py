"""Scheduling of an experiment's runs: local slots, Slurm's queue, early stopping and background runs."""
