"""The small policy: prompts, loading, training and export."""
