"""Language models behind one awaitable interface: request and reply types, the wave engine, and its backends."""
