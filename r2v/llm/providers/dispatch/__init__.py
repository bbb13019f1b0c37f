"""Dispatch of requests by provider batches or direct calls, up to the verdict of each."""
