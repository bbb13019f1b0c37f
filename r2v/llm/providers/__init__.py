"""Providers: OpenAI and Anthropic behind one narrow protocol."""
