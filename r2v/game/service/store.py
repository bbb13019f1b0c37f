"""Results of a job on disk: raw conversations and their analysis.

    results/batch_jobs/<job id>/
      raw/job.json  raw/interactions.json      set-up and status; every conversation word by word
      analysis/analysis.json                   all summary statistics and tests
      analysis/*.csv  report.txt  figures/     tables; figures on request
      journal/                                 the providers' journals of paid replies

The analysis is a pure function of raw/ and can be repeated (`reanalyse`). Every file is written atomically; `job.json`
contains a hash of itself, and of the conversations once they are written.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from r2v.errors import InputError
from r2v.evaluation.tables.files import round_figures
from r2v.game.play.players import Agent
from r2v.game.play.records import Interaction
from r2v.game.play.rules import GameMode, Payoffs, Rules
from r2v.game.report.tables import csv_tables, text_report
from r2v.game.service.jobs import BatchJob
from r2v.game.statistics.analysis import AgentInfo, analyse
from r2v.storage.artifact_manifest import Damaged
from r2v.storage.files import content_sha256, write_json, write_text
from r2v.storage.integrity import hashed, read_hashed, verify_file


def save_setup(job: BatchJob, service: str, *, interactions_sha256: str | None = None) -> None:
    """Write the job's set-up and status, and the hash of its conversations."""
    write_json(
        job.results_path / "raw" / "job.json",
        hashed(
            {
                "id": job.id,
                "service": service,
                "status": job.status,
                "error": job.error,
                "tasks": dict(sorted(Counter(task.status for task in job.tasks).items())),
                "game_mode": job.game_mode.value,
                "seed": job.seed,
                "num_interactions": len(job.tasks),
                "messages_per_interaction": job.messages_per_interaction,
                "rules": asdict(job.game.rules),
                "agents": [
                    {"id": agent.id, "name": agent.name, **job.game.model_of(agent).settings(), **_arm(agent)}
                    for agent in job.agents
                ],
                "interactions_sha256": interactions_sha256,
            }
        ),
    )


def _arm(agent: Agent) -> dict[str, Any]:
    """Return an agent's settings from a design besides its model, without empty ones."""
    given = {
        "persona": agent.persona,
        "system_prompt": agent.system_prompt,
        "arm": agent.arm,
        "levels": dict(agent.levels),
    }
    return {name: value for name, value in given.items() if value}


def save(job: BatchJob, service: str) -> None:
    """Write a finished job's conversations, their analysis, and last its status, so that "completed" implies both."""
    path = job.results_path / "raw" / "interactions.json"
    write_json(path, [interaction.to_json() for interaction in job.interactions])
    write_analysis(job.results_path, job.interactions, job.game_mode, job.game.rules, job.agent_infos)
    save_setup(job, service, interactions_sha256=content_sha256(path))


def write_analysis(
    folder: Path, interactions: list[Interaction], mode: GameMode, rules: Rules, agents: list[AgentInfo]
) -> dict[str, Any]:
    """Analyse, write everything under `analysis/`, and return the analysis; numbers are rounded to six digits."""
    analysis: dict[str, Any] = round_figures(analyse(interactions, mode, rules, agents))
    out = folder / "analysis"
    for name, text in {**csv_tables(analysis), "report.txt": text_report(analysis)}.items():
        write_text(out / name, text)
    write_json(out / "analysis.json", analysis)
    return analysis


def load(folder: Path) -> tuple[list[Interaction], GameMode, Rules, list[AgentInfo]]:
    """Return a job's raw results. Raises InputError if they are missing, malformed or altered."""
    path = folder / "raw" / "interactions.json"
    try:
        setup = read_hashed(folder / "raw" / "job.json")
        if setup.get("interactions_sha256") is not None:
            verify_file(path, str(setup["interactions_sha256"]), "job.json")
        stored = json.loads(path.read_text())
        rules = Rules(**{**setup["rules"], "payoffs": Payoffs(**setup["rules"]["payoffs"])})
        agents = [
            AgentInfo(
                id=agent["id"],
                name=agent["name"],
                model=agent.get("arm") or agent["model"],
                levels={str(name): str(level) for name, level in agent.get("levels", {}).items()},
            )
            for agent in setup["agents"]
        ]
        return [Interaction.from_json(values) for values in stored], GameMode(setup["game_mode"]), rules, agents
    except Damaged as error:
        raise InputError(f"{error}; restore it, or play the job again: its journal keeps what was paid") from None
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{folder}: no results of a finished job ({error.filename} is missing)") from error
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{folder}: not the raw results of a job: {error!r}") from error


def analysis_of(folder: Path) -> dict[str, Any]:
    """Return the analysis of a job's raw results, equal to `analysis.json`, without writing it."""
    analysis: dict[str, Any] = round_figures(analyse(*load(folder)))
    return analysis


def reanalyse(folder: Path) -> dict[str, Any]:
    """Repeat the analysis of a job's raw results and write it."""
    return write_analysis(folder, *load(folder))
