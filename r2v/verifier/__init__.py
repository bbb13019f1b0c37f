"""The verifier, which scores an action in its context: executed labels, a small head that learns them, an LLM judge."""
