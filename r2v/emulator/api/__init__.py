"""The HTTP APIs that are emulated: what each provider's endpoints accept, refuse and answer."""
