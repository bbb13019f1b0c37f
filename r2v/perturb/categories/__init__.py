"""Perturbation categories: one file each."""
