"""The memory planner: what a training run needs of a GPU's memory, known before a GPU is asked for.

measurement, store      what a micro-batch of a stage's own code needs, and the files that keep it: no torch
measured                runs that code on tensors without data, in a process of its own
on_device               runs on a GPU at hand: probe, calibration, peaks of a job, retry on out-of-memory
planner                 adds roles, shards and placements up, and finds the largest micro-batches that fit
"""

from r2v.memory.batch_table import optimize_batch_processing as optimize_batch_processing
