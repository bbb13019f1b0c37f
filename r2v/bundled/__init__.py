"""Bundled models: the weights that ship with R2V, and the recipes that pretrained them."""
