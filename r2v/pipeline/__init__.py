"""Pipeline: the table of stages, their state, and the runner of stages in this process."""
