"""Many configurations of the same pipeline, compared."""
