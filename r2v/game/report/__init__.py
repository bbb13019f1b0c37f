"""What a person reads of a job: tables and plots."""
