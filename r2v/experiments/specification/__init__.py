"""Specifications of experiments, and the points that they expand to."""
