"""Rules, players, pairings, and the play of one conversation."""
