"""Measurement of memory on tensors without data: real models and losses, one micro-batch at a time. Needs torch."""
