"""Models as something you await: request and reply types, the wave engine, and its backends."""
