"""Healing: keeps a chain in line: why a job failed, what follows, and who submits it."""
