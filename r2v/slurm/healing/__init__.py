"""Healing: why a job failed, and whether and how it is resubmitted."""
