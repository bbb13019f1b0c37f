"""Commands of a cluster: projects, chains of jobs, plans of memory and time, serving engines."""
