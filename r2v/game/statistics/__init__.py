"""Statistics of played conversations, each with its interval."""
