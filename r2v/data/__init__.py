"""Recorded episodes: schema, files, runs, and the split of tasks."""

from r2v.data.episode import Action as Action
from r2v.data.episode import Episode as Episode
from r2v.data.episode import EpisodeMetadata as EpisodeMetadata
from r2v.data.episode import Observation as Observation
from r2v.data.episode import PerturbationType as PerturbationType
from r2v.data.episode import Step as Step
from r2v.data.episode import StepLabel as StepLabel
from r2v.data.manifest import RunManifest as RunManifest
from r2v.data.registry import DataRegistry as DataRegistry
from r2v.data.store import TrajectoryStore as TrajectoryStore
