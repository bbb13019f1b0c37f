"""Memory planner: GPU memory of a training run, estimated before a GPU is requested.

measurement, store      memory of a micro-batch of a stage's own code, and its files: no torch
measured                runs that code on fake tensors, in a process of its own
on_device               runs on a GPU: probe, calibration, peak monitor, retry on out-of-memory
planner                 sums roles, shards and placements, and finds the largest micro-batches that fit
"""

from r2v.memory.batch_table import optimize_batch_processing as optimize_batch_processing
