"""Rollouts: generating completions, playing episodes, and laying them out as transitions."""
