"""Bundles: a trained policy, verifier and router as one folder, and how it is played."""
