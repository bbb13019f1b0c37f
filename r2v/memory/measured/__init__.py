"""Measurement of memory on fake tensors: real models and losses, one micro-batch at a time. Needs torch."""
