"""Specifications of experiments and their expansion into points."""
