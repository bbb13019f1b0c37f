"""Dispatch: how requests travel, by provider batches or direct calls, and how each is carried to its end."""
