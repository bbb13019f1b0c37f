"""Tables and figures of a job."""
