"""Serving engines: the policy served beside the stage that plays it, with R2V's own draws, renderer and records."""
