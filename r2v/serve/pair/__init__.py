"""The served pair: the small model proposes a turn, and the bundle's router decides who acts."""
