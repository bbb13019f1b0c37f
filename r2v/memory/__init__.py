"""What a training run needs of a GPU's memory, reckoned before one is asked for.

The planner is arithmetic on a model's config.json: no torch, no weights, no GPU. `r2v.memory.tracker.tracker` is its
judge:
it counts the bytes of the real libraries' own operations on tensors that hold no data.
"""

from r2v.memory.batch_table import optimize_batch_processing

__all__ = ["optimize_batch_processing"]
