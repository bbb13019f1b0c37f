"""Detectors: whether a message gives a secret away."""
