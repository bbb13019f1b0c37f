"""Experiments: comparisons of many configurations of one pipeline."""
