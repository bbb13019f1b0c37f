"""Environments that an agent acts in. `base` says what a benchmark is; every other file or folder is one benchmark."""
