"""Playing: rules, players, who meets whom, and one conversation."""
