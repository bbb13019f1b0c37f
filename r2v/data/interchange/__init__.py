"""Interchange: trajectories of other tools as episodes (`importing`), and episodes as those (`exporting`).

Between a format and an episode stands a `Conversation` (`conversation`). What is imported was executed elsewhere, or
not at all: `Episode.executed` is False, so that it may be learnt from and never enters a table.
"""
