"""The model registry: what a provider's model costs, how long it lives, and what its requests may hold."""
