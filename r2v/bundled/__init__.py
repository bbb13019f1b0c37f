"""Bundled models: the weights that ship with R2V; `benchmarks/recipes` pretrained them."""
