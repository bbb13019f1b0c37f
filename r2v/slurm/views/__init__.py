"""Views of a chain: status, logs, costs, explanations, for people and for programs."""
