"""Interchange: import of other tools' trajectories as episodes (`importing`), and export (`exporting`).

Each format is converted to and from a `Conversation` (`conversation`). Imported episodes were not executed here:
`Episode.executed` is False, so that they may be trained on and never enter a table.
"""
