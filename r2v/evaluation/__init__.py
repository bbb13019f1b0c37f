"""From executed episodes to figures, intervals, tests, tables and the claims that they allow."""
