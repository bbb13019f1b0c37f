"""The memory planner: what a training run needs of a GPU's memory, computed before a GPU is asked for.

The planner is arithmetic on a model's config.json: no torch, no weights, no GPU. `r2v.memory.tracker.tracker` is its
reference: it counts the bytes of the real libraries' own operations on fake tensors, which hold no data.
"""

from r2v.memory.batch_table import optimize_batch_processing

__all__ = ["optimize_batch_processing"]
