"""Worlds an agent acts in. `base` says what a benchmark is; every other file is one benchmark."""
