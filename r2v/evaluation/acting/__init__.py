"""Acting in an evaluation: methods, thresholds, and the acceptance and readiness of a policy."""
