"""When to ask the LLM: signals at decision time, the executed gain they predict, thresholds found by playing."""
