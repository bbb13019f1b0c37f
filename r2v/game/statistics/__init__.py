"""Statistics of played conversations with their intervals."""
