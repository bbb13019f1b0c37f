"""Batch services, which send a job's conversations to the providers, and the folder of a job."""
