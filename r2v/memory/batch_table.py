"""Batch table: batch sizes by GPU memory alone, for models of unknown architecture.

Known architectures are planned by `r2v.memory.planner.planner`.
"""

from __future__ import annotations

from r2v.errors import UsageError


def optimize_batch_processing(available_memory_gb: float) -> dict[str, int]:
    """Return batch sizes by the GPU's free memory in GB, in three steps: above 40, above 20, and below. Raise
    UsageError for memory not above 0.

    >>> optimize_batch_processing(44.53)
    {'base_batch': 16, 'critic_batch': 32, 'micro_batch': 8}
    """
    if not available_memory_gb > 0:
        raise UsageError(f"available_memory_gb must be above 0, got {available_memory_gb}")
    if available_memory_gb > 40:
        return {"base_batch": 16, "critic_batch": 32, "micro_batch": 8}
    if available_memory_gb > 20:
        return {"base_batch": 8, "critic_batch": 16, "micro_batch": 4}
    return {"base_batch": 4, "critic_batch": 8, "micro_batch": 2}
