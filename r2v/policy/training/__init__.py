"""Training of the policy: behaviour cloning and preferences, on one GPU or over sharded weights."""
