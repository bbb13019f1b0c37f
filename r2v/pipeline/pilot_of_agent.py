"""Pilot of an agent: its command plays each task in front of the small model, then in front of the large one.

    told = pilot_of_agent(config, Path("tasks.txt"), "mini -t {task} -y")

A task succeeds as `r2v record` says. Outcomes are logged as they come, so a stopped pilot goes on. Both models share
one cap.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from r2v.config import Config, TeacherConfig, identity
from r2v.config.methods import STRONG, WEAK
from r2v.errors import EnvironmentFault, InputError, UsageError
from r2v.evaluation.pilot import PilotFigures, Play
from r2v.llm.providers.provider_requests import canonical_json
from r2v.llm.providers.spending.journal_report import read_journal
from r2v.llm.providers.spending.payer import paying
from r2v.log import logger
from r2v.pipeline.pilot import ToldPilot, written
from r2v.pipeline.ready import charges
from r2v.randomness import digest

if TYPE_CHECKING:
    from r2v.serve.record import RecordedCommand

PLACEHOLDER = "{task}"


def pilot_of_agent(config: Config, tasks: Path, command: str, root: Path = Path()) -> ToldPilot:
    """Play the tasks of a file, one a line, by both models, and write the page. Raises UsageError, InputError, and as
    `record_command` does."""
    words, listed = _words(command), _tasks(tasks)
    if not config.policy.is_api:
        raise UsageError("--cmd: the small model is asked through an API; set policy.provider and policy.model_name")
    small, large = config.policy.as_endpoint(config.teacher), config.teacher
    if config.teacher.max_usd is None and (charges(small) or charges(large)):
        raise UsageError("teacher.max_usd is not set, and --cmd would be billed; add a cap, such as teacher.max_usd=5")
    with paying(f"pilot-{config.serve.name}"):
        played = asyncio.run(_play(config, {WEAK: small, STRONG: large}, listed, words, root))
    plays = {
        name: {done.task: Play(solved=done.success, usd=done.usd) for done in runs} for name, runs in played.items()
    }
    if not any(done.turns for runs in played.values() for done in runs):
        raise EnvironmentFault(
            f"{words[0]}: asked no model in any task; it has to read OPENAI_BASE_URL or ANTHROPIC_BASE_URL"
        )
    figures = PilotFigures.of(plays[WEAK], plays[STRONG], same_model=identity(small) == identity(large))
    turns = {name: fmean(done.turns for done in runs) for name, runs in played.items()}
    books = (read_journal(folder).state for folder in {done.folder for runs in played.values() for done in runs})
    paid = sum(state.spent + state.lost_usd for state in books)
    page = root / "results" / "pilot" / f"{config.serve.name}.html"
    costs = [
        f"this pilot was billed ${paid:.4f}, stopped runs included; recorded sessions fit a step router (r2v record)"
    ]
    return written(config, tasks.name, figures, turns, page, costs)


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--cmd: no command line ({error})") from None
    if not any(PLACEHOLDER in word for word in words):
        raise UsageError(f"--cmd {command!r:.100}: has no {PLACEHOLDER}, which stands for a line of --tasks")
    return words


def _tasks(path: Path) -> list[str]:
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise InputError(f"--tasks {path}: cannot be read ({error})") from None
    tasks = list(dict.fromkeys(line for line in lines if line))
    if not tasks:
        raise InputError(f"--tasks {path}: holds no line; a task is a line of text")
    return tasks


async def _play(
    config: Config, endpoints: Mapping[str, TeacherConfig], tasks: Sequence[str], words: Sequence[str], root: Path
) -> dict[str, list[RecordedCommand]]:
    from r2v.serve.record import record_command, recorded

    played: dict[str, list[RecordedCommand]] = {name: [] for name in endpoints}
    for number, task in enumerate(tasks, 1):
        for name, teacher in endpoints.items():
            # outcomes are taken up again only where model and command are the same
            what = digest("pilot", canonical_json({"model": identity(teacher)}), *words).hex()[:8]
            serve = replace(config.serve, name=f"{config.serve.name}-{name}-{what}", any_model=True)
            own = replace(config, teacher=teacher, serve=serve)
            done = recorded(own, root, task=task)
            if done is None:
                typed = [word.replace(PLACEHOLDER, task) for word in words]
                done = await record_command(typed, own, root, task=task)
                logger.info("  %d of %d, %s: %s", number, len(tasks), teacher.model_name, done.line)
            played[name].append(done)
    return played
