"""The chain: its file, the records of its jobs, their code, and what failures have taught."""
