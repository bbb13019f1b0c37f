"""Interchange: trajectories of other tools as episodes, and episodes as trajectories of other tools.

    imported = import_trajectories([Path("chat.jsonl")], DataRegistry())     # a run under data/runs
    export_trajectories(episodes, Path("out.jsonl"), "messages", DataRegistry())

Between a format and an episode stands a `Conversation` (`conversation`): `formats` has the reader of each format; chat
messages and ATIF are written too. What is imported was executed elsewhere, or not at all: `Episode.executed` is False,
so that it may be learnt from and never enters a table.
"""

from r2v.data.interchange.exporting import export_trajectories
from r2v.data.interchange.importing import Imported, import_trajectories

__all__ = ["Imported", "export_trajectories", "import_trajectories"]
