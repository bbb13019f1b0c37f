"""Views of a chain: status, logs, costs and explanations, as text and as JSON."""
