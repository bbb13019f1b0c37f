"""Rollouts: actors, gates and models that play episodes, and what would have happened otherwise."""
