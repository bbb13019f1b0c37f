"""Real parts for tests: emulated providers, oracles, small models."""
