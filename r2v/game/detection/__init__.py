"""Detectors of messages that give a secret away."""
