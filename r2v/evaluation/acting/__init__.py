"""Playing of an evaluation: the methods, their thresholds, and whether a policy is accepted and ready."""
