"""Recorded episodes: their schema, the files and runs that hold them, and the split of tasks."""

from r2v.data.episode import Action, Episode, EpisodeMetadata, Observation, PerturbationType, Step, StepLabel
from r2v.data.registry import DataRegistry, RunManifest
from r2v.data.store import TrajectoryStore

__all__ = [
    "Action",
    "DataRegistry",
    "Episode",
    "EpisodeMetadata",
    "Observation",
    "PerturbationType",
    "RunManifest",
    "Step",
    "StepLabel",
    "TrajectoryStore",
]
