"""Memory planner: the peak of every phase by arithmetic alone, without torch."""
