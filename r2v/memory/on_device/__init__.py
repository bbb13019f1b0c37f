"""Memory on the device: measured peaks, calibration of the plan, and retries on out-of-memory."""
