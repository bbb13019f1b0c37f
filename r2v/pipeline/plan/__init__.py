"""Plans of a pipeline before it runs: jobs to do, their work, price and time."""
