"""Parallel training: ranks, placement, micro-batch sizes, FSDP2 and DeepSpeed ZeRO."""
