"""Emulated HTTP APIs: validation and responses of each provider's endpoints."""
