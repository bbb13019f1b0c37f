"""The chain: its file, the records of its jobs, their code snapshot, and the nodes and sizes learned from failures."""
