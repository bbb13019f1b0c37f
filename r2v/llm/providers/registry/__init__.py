"""The model registry: prices, retirements and accepted request parameters of the providers' models."""
