"""Words: the command line of one run of an experiment."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from r2v.experiments.records import RunRecord
from r2v.experiments.spec import ExperimentSpec
from r2v.llm.providers.keys import allowed_words


def words_of(spec: ExperimentSpec, run: RunRecord, flags: Sequence[str] = ()) -> list[str]:
    """What is started for a run: the specification's command with {config} and {run_dir} filled in, or R2V's own word
    for a point; a simulation's flags behind it, as they were typed."""
    if spec.command:
        filled = [word.replace("{config}", run.config_path).replace("{run_dir}", run.run_dir) for word in spec.command]
        return [*filled, *flags]
    own = [sys.executable, "-m", "r2v", "experiments"]
    files = ["--config", run.config_path, "--run-dir", run.run_dir]
    if spec.mode == "simulation":
        return [*own, "simulate", *files, *flags]
    return [*own, "point", *files, "--stage", str(spec.stage), *allowed_words()]
