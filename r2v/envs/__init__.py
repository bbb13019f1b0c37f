"""Environments that an agent acts in: `base` defines the protocols, every other file or folder is one benchmark."""
