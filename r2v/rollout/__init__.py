"""Rollouts: actors, gates and models that play episodes, and counterfactual rollouts from any of their steps."""
