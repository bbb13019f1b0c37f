"""A job's folder: what was played (raw) apart from what is said about it (analysis).

    results/batch_jobs/<job id>/
      raw/job.json  raw/interactions.json      what was asked for, and every conversation word by word
      analysis/analysis.json                   every figure and test
      analysis/*.csv  analysis/*.svg  report.txt
      journal/                                 the providers' journals: what was paid

The analysis is a pure function of raw/ and can be made again from it alone (`analyse_again`). Every file is
written whole or not at all.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from r2v.errors import InputError
from r2v.evaluation.tables.files import settle
from r2v.game.play.records import Interaction
from r2v.game.play.rules import GameMode, Payoffs, Rules
from r2v.game.report.plots import plots
from r2v.game.report.tables import report, tables
from r2v.game.service.jobs import BatchJob
from r2v.game.statistics.analysis import Seated, analyse
from r2v.storage.files import write_json, write_text


def save_setup(job: BatchJob, service: str) -> None:
    """Write down what is to be played, before it is."""
    write_json(
        job.results_path / "raw" / "job.json",
        {
            "id": job.id,
            "service": service,
            "status": job.status,
            "game_mode": job.game_mode.value,
            "seed": job.seed,
            "num_interactions": len(job.tasks),
            "messages_per_interaction": job.messages_per_interaction,
            "rules": asdict(job.game.rules),
            "agents": [
                {"id": agent.id, "name": agent.name, **asdict(job.game.model_of(agent))} for agent in job.agents
            ],
        },
    )


def save(job: BatchJob, service: str) -> None:
    """Write a finished job's conversations, then their analysis, then that it is done."""
    write_json(job.results_path / "raw" / "interactions.json", [one.to_json() for one in job.interactions])
    write_analysis(job.results_path, job.interactions, job.game_mode, job.game.rules, job.seated)
    save_setup(job, service)


def write_analysis(
    folder: Path, interactions: list[Interaction], mode: GameMode, rules: Rules, agents: list[Seated]
) -> dict[str, Any]:
    """Analyse, and write everything under `analysis/`; figures are settled to six digits."""
    analysis: dict[str, Any] = settle(analyse(interactions, mode, rules, agents))
    place = folder / "analysis"
    for name, text in {**tables(analysis), **plots(analysis), "report.txt": report(analysis)}.items():
        write_text(place / name, text)
    write_json(place / "analysis.json", analysis)
    return analysis


def load(folder: Path) -> tuple[list[Interaction], GameMode, Rules, list[Seated]]:
    """A job's raw results. Raises InputError where they are missing or malformed."""
    try:
        setup = json.loads((folder / "raw" / "job.json").read_text())
        stored = json.loads((folder / "raw" / "interactions.json").read_text())
        rules = Rules(**{**setup["rules"], "payoffs": Payoffs(**setup["rules"]["payoffs"])})
        agents = [Seated(id=one["id"], name=one["name"], model=one["model"]) for one in setup["agents"]]
        return [Interaction.from_json(one) for one in stored], GameMode(setup["game_mode"]), rules, agents
    except FileNotFoundError as error:
        raise InputError(f"{folder}: no results of a finished job ({error.filename} is missing)") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder}: not the raw results of a job: {error!r}") from error


def analyse_again(folder: Path) -> dict[str, Any]:
    """Make the analysis of a job's raw results anew."""
    return write_analysis(folder, *load(folder))
