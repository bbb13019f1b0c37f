"""The command line of the AI Secret Game: the subcommands of `r2v game`, and three scripts that run a job.

    r2v game run --models gpt-5.2 claude-haiku-4-5 --temperature 0.2 1 --replicates 20 --dry-run
    r2v game analyse results/batch_jobs/JOB
    python examples/batch_statistical_analysis.py --batch-service auto --agent-type gpt35 --num-interactions 50
    ./run_model_comparison.sh --batch-service openai-conversation --interactions 20 --messages 3

Keys come from OPENAI_API_KEY and ANTHROPIC_API_KEY; OPENAI_BASE_URL and ANTHROPIC_BASE_URL name another server,
for instance `r2v providers emulate`. Exit codes are those of `r2v` (`r2v/errors.py`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from r2v.cli.boundary import guarded, require_text, require_usable_paths
from r2v.cli.game.design import add_played_job, add_power, factors_of, power_lines
from r2v.cli.game.labels import add_label_words
from r2v.cli.game.options import (
    GameDefaults,
    add_figure_option,
    add_judge_options,
    add_player_options,
    add_run_options,
)
from r2v.cli.game.settings import FIGURE_FORMATS, GameSettings, game_settings
from r2v.cli.options import Parser, add_word, add_words
from r2v.errors import EmptyResult, UsageError
from r2v.game.play.players import ModelAgent, current_agent, model_agent
from r2v.game.play.rules import GameMode
from r2v.signals import interrupt_on_stop

if TYPE_CHECKING:
    from r2v.game.service.jobs import BatchJob
    from r2v.game.service.services import BatchService

R2V_GAME = GameDefaults()
"""Defaults of `r2v game run`."""


def main(argv: Sequence[str] | None = None, defaults: GameDefaults = R2V_GAME) -> int:
    """Run one job as a separate script, and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)

    def act() -> None:
        interrupt_on_stop()
        require_text(words)
        arguments = build_parser(defaults).parse_args(words)
        require_usable_paths(arguments)
        _run(arguments, defaults)

    return guarded(act)


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `game` and its subcommands."""
    words = add_words(commands, "game", "play the AI Secret Game and analyse it")
    about = "play a job: models, and any factors of a design"
    run = add_word(words, "run", about, lambda arguments: _run(arguments, R2V_GAME))
    add_run_options(run, R2V_GAME)
    add_power(words, add_player_options, _power)
    analyse = add_word(words, "analyse", "repeat the analysis of a played job, with a judge or without", _analyse)
    add_played_job(analyse)
    add_judge_options(analyse)
    figures = add_word(words, "figures", "draw the figures of a played job", _figures)
    add_played_job(figures)
    add_figure_option(figures.add_argument_group("formats"))
    add_label_words(words)


def build_parser(defaults: GameDefaults) -> argparse.ArgumentParser:
    """Return the parser of a script."""
    parser = Parser(description="Play the AI Secret Game and analyse it.")
    add_run_options(parser, defaults)
    return parser


def _run(arguments: argparse.Namespace, defaults: GameDefaults) -> None:
    from r2v.game.service.services import run_job

    settings = game_settings(arguments.overrides)
    service, job = _job(arguments, settings, defaults)
    models = dict.fromkeys(job.game.model_of(agent).model for agent in job.agents)
    print(
        f"{job.id}: {len(job.tasks)} interactions of {job.messages_per_interaction} messages, {len(job.agents)} agents "
        f"({', '.join(models)}), service {service.spec.name}",
        flush=True,
    )
    if arguments.dry_run:
        from r2v.game.service.estimate import estimate_job, estimate_lines

        estimate = estimate_job(job, arguments.max_concurrent, settings.message_tokens)
        print("\n".join(estimate_lines(job, estimate, settings.message_tokens)))
        return
    job = run_job(service, job)
    print("\n" + (job.results_path / "analysis" / "report.txt").read_text())
    print(f"  raw        {job.results_path / 'raw'}\n  analysis   {job.results_path / 'analysis'}")
    if job.status == "failed":
        raise EmptyResult(
            f"{job.id}: none of {len(job.tasks)} conversations was played to its end; the reasons are "
            "above and in raw/interactions.json"
        )
    _draw(job.results_path, settings.figures)


def _job(
    arguments: argparse.Namespace, settings: GameSettings, defaults: GameDefaults
) -> tuple[BatchService, BatchJob]:
    """Return the service and the job that the options describe. Raise UsageError."""
    from r2v.game.play.arms import agents_of, arms, num_pairs, pairs_of, seats_of
    from r2v.game.service.jobs import GameService
    from r2v.game.service.services import service_named

    mode = GameMode(arguments.game_mode)
    design_arms = arms(factors_of(_models(arguments, settings), arguments, settings))
    word = arguments.against
    against = word if word in ("all", "self") else _priced(model_agent(word), settings)
    if settings.num_agents is not None and against != "all":
        raise UsageError(f"num_agents with --against {arguments.against}: the number of arms decides")
    # The modes other than standard score the secrets held at the end: between two agents there is only one to hold.
    count = settings.num_agents or max(len(design_arms), 2 if mode is GameMode.STANDARD else 4)
    if count < len(design_arms):
        raise UsageError(f"num_agents={count}: fewer than the {len(design_arms)} arms")
    agents, pairs = agents_of(seats_of(design_arms, against, count)), pairs_of(len(design_arms), against)
    if arguments.replicates and arguments.interactions:
        raise UsageError("--replicates and --num-interactions: give one of them")
    models = [agent.service for agent in agents if agent.service is not None]
    service = service_named(arguments.batch_service, models)(
        GameService(agent_service=models[0], rules=settings.rules),
        max_concurrent_tasks=arguments.max_concurrent,
        batch_size=arguments.batch_size,
        mode=arguments.mode,
        seed=settings.seed,
        max_usd=arguments.max_usd,
        poll_seconds=settings.poll_seconds,
        results=arguments.results,
        on_line=partial(print, flush=True),
    )
    interactions = arguments.interactions or defaults.interactions
    if arguments.replicates:
        interactions = 2 * arguments.replicates * num_pairs(len(agents), pairs)
    job = service.create_batch_job(agents, mode, interactions, arguments.messages, defaults.name, pairs=pairs)
    return service, job


def _models(arguments: argparse.Namespace, settings: GameSettings) -> list[ModelAgent]:
    names = arguments.models
    if not names:
        service, providers = getattr(arguments, "batch_service", "auto"), ("openai", "anthropic")
        openai, anthropic = ["gpt35", "gpt4o_mini"], ["claude_opus", "claude_sonnet"]
        of_provider = anthropic if service.startswith("anthropic") else openai
        every = of_provider if service.startswith(providers) else openai + anthropic
        names = every if settings.compare else of_provider[:1]
    return [_priced(model_agent(name), settings) for name in names]


def _priced(agent: ModelAgent, settings: GameSettings) -> ModelAgent:
    """Return the agent with the given prices if its model has no listed one."""
    from r2v.llm.providers.registry.lifecycle import today
    from r2v.llm.providers.registry.listed import listed_price

    usd_in, usd_out = settings.usd_in, settings.usd_out
    if listed_price(agent.provider, agent.model, today()) is not None or (usd_in is None and usd_out is None):
        return agent
    return replace(agent, usd_in=usd_in, usd_out=usd_out)


def _power(arguments: argparse.Namespace) -> None:
    settings = game_settings(arguments.overrides)
    factors = factors_of(_models(arguments, settings), arguments, settings)
    print("\n".join(power_lines(factors, arguments, settings)))


def _analyse(arguments: argparse.Namespace) -> None:
    from r2v.game.report.tables import text_report
    from r2v.game.service.store import reanalyse

    if bool(arguments.judge) != bool(arguments.labels):
        raise UsageError(
            "--judge and --labels: go together; a judge's count says nothing without a sample labelled by people"
        )
    print(text_report(reanalyse(arguments.job)))
    if arguments.judge:
        _judge(arguments)


def _figures(arguments: argparse.Namespace) -> None:
    _draw(arguments.job, arguments.figures)


def _draw(folder: Path, formats: Sequence[str]) -> None:
    from r2v.game.report.figures import write_figures
    from r2v.game.service.store import analysis_of

    selected = [form for form in FIGURE_FORMATS if form in formats]
    if selected:
        paths = write_figures(analysis_of(folder), folder / "figures", selected)
        print(f"  figures    {folder / 'figures'} ({len(paths)} files)")


def _judge(arguments: argparse.Namespace) -> None:
    from r2v.game.judge import corrected_rate, judge_all, read_labels
    from r2v.game.service.provider_setup import DispatchSettings, open_provider
    from r2v.game.service.store import load
    from r2v.llm.providers.spending.budget import SharedBudget
    from r2v.storage.files import write_json

    settings = game_settings(arguments.overrides)
    folder, labels = arguments.job, read_labels(arguments.labels)
    interactions = load(folder)[0]
    dispatch = DispatchSettings(
        mode=settings.judge_mode,
        run=f"judge-{folder.name}",
        conversations=len(interactions),
        folder=folder / "journal",
        budget=SharedBudget(arguments.max_usd, name="--max-usd"),
        poll_seconds=settings.poll_seconds,
    )
    model = replace(current_agent(_priced(model_agent(arguments.judge), settings)), temperature=0.0, max_tokens=64)
    verdicts = judge_all(interactions, open_provider(model, dispatch), dispatch.run)
    rate = corrected_rate(verdicts, labels)
    write_json(folder / "analysis" / "judge.json", {"model": model.model, **rate})
    corrected = "unknown: no better than chance" if rate["corrected"] is None else f"{100 * rate['corrected']:.1f} %"
    print(
        f"judge {model.model}: {100 * rate['apparent']:.1f} % of {rate['judged']} secrets revealed "
        f"({rate['unread']} without a verdict), sensitivity {rate['sensitivity']['value']:.2f}, specificity "
        f"{rate['specificity']['value']:.2f}; corrected {corrected}"
    )


def run_script(argv: Sequence[str] | None = None, **defaults: Any) -> NoReturn:
    """Run a script with these defaults and exit."""
    sys.exit(main(argv, replace(R2V_GAME, **defaults)))
