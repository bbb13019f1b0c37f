"""The fake-mode oracle: the same phases run on tensors without data, to check the planner."""
