"""Scheduling of an experiment's runs: in slots here or in Slurm's queue, with early stopping, in the background."""
