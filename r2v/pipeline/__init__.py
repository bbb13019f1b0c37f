"""The pipeline: the table of stages, what is up to date, and running it in this process."""
