"""On the device at hand: a job's memory is measured, calibrated against the plan, and retried where it ran out."""
