"""The command line of the AI Secret Game: `r2v game`, and three scripts that run it with other defaults.

    python examples/batch_statistical_analysis.py --batch-service auto --agent-type gpt35 --num-interactions 50
    python examples/test_conversation_batching.py --interactions 5 --messages 2 --model gpt-3.5
    ./run_model_comparison.sh --batch-service openai-conversation --interactions 20 --messages 3

Keys come from OPENAI_API_KEY and ANTHROPIC_API_KEY; OPENAI_BASE_URL and ANTHROPIC_BASE_URL name another server,
for instance `r2v providers emulate`. Exit codes are those of `r2v` (`r2v/errors.py`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

from r2v.cli.boundary import guarded, require_text, require_usable_paths
from r2v.cli.game_options import GameDefaults, add_options
from r2v.cli.options import Parser
from r2v.constraints import check_fields
from r2v.errors import EmptyResult, UsageError
from r2v.game.play.players import Agent, ModelAgent, current_agent, model_agent
from r2v.game.play.rules import GameMode, Rules
from r2v.signals import interrupt_on_stop

R2V_GAME = GameDefaults()
"""What `r2v game` plays where no option is given."""


def main(argv: Sequence[str] | None = None, defaults: GameDefaults = R2V_GAME) -> int:
    """Run one job, or analyse one again, and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)

    def act() -> int:
        interrupt_on_stop()
        require_text(words)
        arguments = build_parser(defaults).parse_args(words)
        require_usable_paths(arguments)
        return run(arguments, defaults)

    return guarded(act)


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `game` to the command line of `r2v`."""
    about = "play the AI Secret Game and analyse it"
    parser = commands.add_parser("game", help=about, description=about)
    add_options(parser, R2V_GAME)
    parser.set_defaults(act=lambda arguments: run(arguments, R2V_GAME))


def build_parser(defaults: GameDefaults) -> argparse.ArgumentParser:
    """The command line of a script by itself."""
    parser = Parser(description="Play the AI Secret Game and analyse it.")
    add_options(parser, defaults)
    return parser


def run(arguments: argparse.Namespace, defaults: GameDefaults) -> int:
    """Play one job, or analyse one again; returns the exit code."""
    from r2v.game.report.tables import text_report
    from r2v.game.service.store import reanalyse

    if arguments.judge and not (arguments.analyse and arguments.labels):
        raise UsageError(
            "--judge: needs --analyse with a played job and --labels with a sample labelled by people; a "
            "judge's count says nothing by itself"
        )
    if not arguments.analyse:
        return _play(arguments, defaults)
    print(text_report(reanalyse(arguments.analyse)))
    return _judge(arguments) if arguments.judge else 0


def _play(arguments: argparse.Namespace, defaults: GameDefaults) -> int:
    from r2v.game.service.jobs import GameService
    from r2v.game.service.services import run_job, service_named

    mode, rules = GameMode(arguments.game_mode), parse_rules(arguments.rules)
    names = arguments.models or _default_models(arguments.batch_service, arguments.compare)
    models = [model_agent(name) for name in names]
    agents = make_agents(models, arguments.num_agents or _default_num_agents(mode, models))
    service = service_named(arguments.batch_service, models)(
        GameService(agent_service=models[0], rules=rules),
        max_concurrent_tasks=arguments.max_concurrent,
        batch_size=arguments.batch_size,
        mode=arguments.mode,
        seed=arguments.seed,
        max_usd=arguments.max_usd,
        poll_seconds=arguments.poll_seconds,
        results=arguments.results,
        on_line=_print_line,
    )
    job = service.create_batch_job(agents, mode, arguments.interactions, arguments.messages, defaults.name)
    _print_line(
        f"{job.id}: {len(job.tasks)} interactions of {arguments.messages} messages, {len(agents)} agents "
        f"({', '.join(dict.fromkeys(current_agent(model).model for model in models))}), service {service.spec.name}"
    )
    job = run_job(service, job)
    print("\n" + (job.results_path / "analysis" / "report.txt").read_text())
    print(f"  raw        {job.results_path / 'raw'}\n  analysis   {job.results_path / 'analysis'}")
    if job.status == "failed":
        raise EmptyResult(
            f"{job.id}: none of {len(job.tasks)} conversations was played to its end; the reasons are "
            "above and in raw/interactions.json"
        )
    return 0


def _judge(arguments: argparse.Namespace) -> int:
    from r2v.game.judge import corrected_rate, judge_all, read_labels
    from r2v.game.service.provider_setup import DispatchSettings, open_provider
    from r2v.game.service.store import load
    from r2v.llm.providers.spending.budget import SharedBudget
    from r2v.storage.files import write_json

    folder, labels = arguments.analyse, read_labels(arguments.labels)
    interactions = load(folder)[0]
    dispatch = DispatchSettings(
        mode=arguments.mode or "concurrent",
        batch_size=arguments.batch_size,
        run=f"judge-{folder.name}",
        max_concurrent=arguments.max_concurrent,
        conversations=len(interactions),
        folder=folder / "journal",
        budget=SharedBudget(arguments.max_usd, name="--max-usd"),
        poll_seconds=arguments.poll_seconds,
    )
    model = replace(current_agent(model_agent(arguments.judge)), temperature=0.0, max_tokens=64)
    verdicts = judge_all(interactions, open_provider(model, dispatch), dispatch.run)
    rate = corrected_rate(verdicts, labels)
    write_json(folder / "analysis" / "judge.json", {"model": model.model, **rate})
    corrected = "unknown: no better than chance" if rate["corrected"] is None else f"{100 * rate['corrected']:.1f} %"
    print(
        f"judge {model.model}: {100 * rate['apparent']:.1f} % of {rate['judged']} secrets revealed "
        f"({rate['unread']} without a verdict), sensitivity {rate['sensitivity']['value']:.2f}, specificity "
        f"{rate['specificity']['value']:.2f}; corrected {corrected}"
    )
    return 0


def _print_line(line: str) -> None:
    print(line, flush=True)


def _default_models(service: str, compare: bool) -> list[str]:
    """The models that play when none is named."""
    openai, anthropic = ["gpt35", "gpt4o_mini"], ["claude_opus", "claude_sonnet"]
    of_provider = anthropic if service.startswith("anthropic") else openai
    if not compare:
        return of_provider[:1]
    return of_provider if service.startswith(("openai", "anthropic")) else openai + anthropic


def _default_num_agents(mode: GameMode, models: Sequence[ModelAgent]) -> int:
    # The other modes score the secrets held at the end: between two agents there is only one to hold.
    return max(len(models), 2 if mode is GameMode.STANDARD else 4)


def make_agents(models: Sequence[ModelAgent], count: int) -> list[Agent]:
    """`count` agents that take the models in turn. Their names do not give away which model plays them."""
    if count < len(models):
        raise UsageError(f"--num-agents {count}: fewer than the {len(models)} models")
    return [
        Agent(id=str(number + 1), name=f"Agent{number + 1}", service=models[number % len(models)])
        for number in range(count)
    ]


def parse_rules(assignments: Sequence[str]) -> Rules:
    """The rules with `key=value` changes. Raises UsageError for an unknown key or a value of the wrong type."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from r2v.config.sources import read_override, understood

    merged = OmegaConf.structured(Rules)
    for assignment in assignments:
        source = f"--rules {assignment}"
        try:
            tree = read_override(source, assignment)
            merged = understood(source, lambda: OmegaConf.merge(merged, tree))  # noqa: B023
        except OmegaConfBaseException as error:
            raise UsageError(f"{source}: {str(error).splitlines()[0]}") from error
    rules = OmegaConf.to_object(merged)
    assert isinstance(rules, Rules)
    check_fields("rules", rules)
    return rules


def run_script(argv: Sequence[str] | None = None, **defaults: Any) -> NoReturn:
    """The end of a script: run with these defaults and leave."""
    sys.exit(main(argv, replace(R2V_GAME, **defaults)))
