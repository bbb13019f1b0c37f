"""Measures of an evaluation: outcomes, metrics, frontiers, comparisons, with their intervals."""
