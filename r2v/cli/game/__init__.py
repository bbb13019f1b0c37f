"""Commands of the AI Secret Game: `r2v game`, and the scripts that run a job."""
