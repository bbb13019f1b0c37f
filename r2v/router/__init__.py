"""When to ask the LLM: signals at decision time, the gain they predict, thresholds found by playing."""
