"""Batch services: ways to send a job's conversations to the providers, and the folder a job is kept in."""
