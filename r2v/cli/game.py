"""The AI Secret Game's command line: `r2v game`, and the three scripts that are it with other defaults.

    python examples/batch_statistical_analysis.py --batch-service auto --agent-type gpt35 --num-interactions 50
    python examples/test_conversation_batching.py --interactions 5 --messages 2 --model gpt-3.5
    scripts/run_model_comparison.sh --batch-service openai-conversation --interactions 20 --messages 3

Keys come from OPENAI_API_KEY and ANTHROPIC_API_KEY; OPENAI_BASE_URL and ANTHROPIC_BASE_URL lead elsewhere, for
instance to `r2v providers emulate`. Exit codes are those of `r2v` (`r2v/errors.py`).
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from r2v.errors import EmptyResult, Interrupted, R2VError, UsageError
from r2v.game.play.players import AGENT_TYPES, Agent, ModelAgent, model_agent
from r2v.game.play.rules import GameMode, Rules
from r2v.log import logger, setup
from r2v.storage.paths import GAME_JOBS


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """What a script runs when it is told nothing."""

    service: str = "default"
    interactions: int = 100
    messages: int = 5
    name: str = "conversation"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see `{self.prog} --help`")


def main(argv: Sequence[str] | None = None, defaults: Defaults = Defaults()) -> int:
    """Run one job, or analyse one again, and return the exit code."""
    setup()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return run(build_parser(defaults).parse_args(argv), defaults)
    except R2VError as error:
        logger.error("r2v: %s", " ".join(str(error).split()))
        return error.exit_code
    except KeyboardInterrupt:
        logger.error("r2v: interrupted; the same command continues, and what was answered is not paid again")
        return Interrupted.exit_code


def _interrupt(signum: int, frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGINT)


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `game` to the command line of `r2v`."""
    about = "play the AI Secret Game and analyse it"
    parser = commands.add_parser("game", help=about, description=about)
    add_options(parser, Defaults())
    parser.set_defaults(act=lambda arguments: run(arguments, Defaults()))


def build_parser(defaults: Defaults) -> argparse.ArgumentParser:
    """The command line of a script by itself."""
    parser = _Parser(description="Play the AI Secret Game and analyse it.")
    add_options(parser, defaults)
    return parser


def add_options(parser: argparse.ArgumentParser, defaults: Defaults) -> None:
    """Add every option of the game."""
    add = parser.add_argument
    add(
        "--batch-service",
        default=defaults.service,
        metavar="SERVICE",
        help="default, openai, anthropic, conversation, openai-conversation, anthropic-conversation, or auto (the "
        "conversation service of the models' provider); default: %(default)s",
    )
    add(
        "--agent-type",
        "--model",
        "--models",
        dest="models",
        nargs="+",
        metavar="MODEL",
        help=f"{', '.join(AGENT_TYPES)}, or any model of the price table; several play each other",
    )
    add("--game-mode", default="standard", choices=[mode.value for mode in GameMode], help="default: %(default)s")
    add(
        "--num-interactions",
        "--interactions",
        dest="interactions",
        type=int,
        default=defaults.interactions,
        help="conversations in all; default: %(default)s",
    )
    add(
        "--messages-per-interaction",
        "--messages",
        dest="messages",
        type=int,
        default=defaults.messages,
        help="messages of a conversation, both sides together; default: %(default)s",
    )
    add("--batch-size", type=int, default=10, help="requests in a wave, at most; default: %(default)s")
    add(
        "--max-concurrent", type=int, default=5, help="batches or direct calls under way, at most; default: %(default)s"
    )
    add(
        "--mode",
        choices=["batch", "batch_first", "concurrent", "auto"],
        help="another way to travel than the service's",
    )
    add("--compare", action="store_true", help="without --model: all of the service's providers' usual models")
    add("--num-agents", type=int, help="players; default: one per model, at least 2, and 4 where secrets are held")
    add("--seed", type=int, default=0, help="names the secrets and every draw")
    add(
        "--rules",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="memory, resell, guess, payoffs.both, diversity_points, standard_points, target_bonus, ...",
    )
    add("--max-usd", type=float, help="hard cap for the job, all its models together")
    add(
        "--poll-seconds",
        type=float,
        default=5.0,
        help="first look at a batch, later ones up to twenty times as far apart; default: %(default)s",
    )
    add("--results", type=Path, default=GAME_JOBS, metavar="FOLDER", help="default: %(default)s")
    add("--analyse", type=Path, metavar="JOB_FOLDER", help="only make the analysis of a played job again")
    add("--judge", metavar="MODEL", help="with --analyse and --labels: have this model read the conversations too")
    add("--labels", type=Path, metavar="FILE", help="what people say of a sample; see r2v/game/detection/judge.py")


def run(arguments: argparse.Namespace, defaults: Defaults) -> int:
    """Run one job, or analyse one again; returns the exit code."""
    from r2v.game.report.tables import report
    from r2v.game.service.jobs import GameService
    from r2v.game.service.services import run_here, service_called
    from r2v.game.service.store import analyse_again

    if arguments.judge and not (arguments.analyse and arguments.labels):
        raise UsageError(
            "--judge: needs --analyse with a played job and --labels with a sample labelled by people; a "
            "judge's count says nothing by itself"
        )
    if arguments.analyse:
        print(report(analyse_again(arguments.analyse)))
        return _judge(arguments) if arguments.judge else 0
    mode, rules = GameMode(arguments.game_mode), rules_of(arguments.rules)
    models = [model_agent(name) for name in arguments.models or _usual(arguments.batch_service, arguments.compare)]
    agents = players(models, arguments.num_agents or _fewest(mode, models))
    service = service_called(arguments.batch_service, models)(
        GameService(agent_service=models[0], rules=rules),
        max_concurrent_tasks=arguments.max_concurrent,
        batch_size=arguments.batch_size,
        mode=arguments.mode,
        seed=arguments.seed,
        max_usd=arguments.max_usd,
        poll_seconds=arguments.poll_seconds,
        results=arguments.results,
        tell=_tell,
    )
    job = service.create_batch_job(agents, mode, arguments.interactions, arguments.messages, defaults.name)
    _tell(
        f"{job.id}: {len(job.tasks)} interactions of {arguments.messages} messages, {len(agents)} agents "
        f"({', '.join(dict.fromkeys(model.model for model in models))}), service {service.kind.name}"
    )
    done = run_here(service, job)
    print("\n" + (done.results_path / "analysis" / "report.txt").read_text())
    print(f"  raw        {done.results_path / 'raw'}\n  analysis   {done.results_path / 'analysis'}")
    if all(one.incomplete is not None for one in done.interactions):
        raise EmptyResult(
            f"{job.id}: none of {len(job.tasks)} conversations was played to its end; the reasons are "
            "above and in raw/interactions.json"
        )
    return 0


def _judge(arguments: argparse.Namespace) -> int:
    from r2v.game.detection.judge import corrected, judge_all, read_labels
    from r2v.game.service.provider_setup import Travel, open_provider
    from r2v.game.service.store import load
    from r2v.llm.providers.spending.budget import Purse
    from r2v.storage.files import write_json

    folder, labels = arguments.analyse, read_labels(arguments.labels)
    interactions = load(folder)[0]
    travel = Travel(
        mode=arguments.mode or "concurrent",
        batch_size=arguments.batch_size,
        run=f"judge-{folder.name}",
        max_concurrent=arguments.max_concurrent,
        conversations=len(interactions),
        folder=folder / "journal",
        purse=Purse(arguments.max_usd, name="--max-usd"),
        poll_seconds=arguments.poll_seconds,
    )
    model = replace(model_agent(arguments.judge), temperature=0.0, max_tokens=64)
    found = corrected(judge_all(interactions, open_provider(model, travel), travel.run), labels)
    write_json(folder / "analysis" / "judge.json", {"model": model.model, **found})
    right = "unknown: no better than chance" if found["corrected"] is None else f"{100 * found['corrected']:.1f} %"
    print(
        f"judge {model.model}: {100 * found['apparent']:.1f} % of {found['judged']} secrets revealed "
        f"({found['unread']} without a verdict), sensitivity {found['sensitivity']['value']:.2f}, specificity "
        f"{found['specificity']['value']:.2f}; corrected {right}"
    )
    return 0


def _tell(line: str) -> None:
    print(line, flush=True)


def _usual(service: str, compare: bool) -> list[str]:
    """The models that play when none is named."""
    openai, anthropic = ["gpt35", "gpt4o_mini"], ["claude_opus", "claude_sonnet"]
    named = anthropic if service.startswith("anthropic") else openai
    if not compare:
        return named[:1]
    return named if service.startswith(("openai", "anthropic")) else openai + anthropic


def _fewest(mode: GameMode, models: Sequence[ModelAgent]) -> int:
    return max(len(models), 2 if mode is GameMode.STANDARD else 4)


def players(models: Sequence[ModelAgent], count: int) -> list[Agent]:
    """`count` agents that take the models in turn. Their names tell nothing of who plays them."""
    if count < len(models):
        raise UsageError(f"--num-agents {count}: fewer than the {len(models)} models")
    return [
        Agent(id=str(number + 1), name=f"Agent{number + 1}", service=models[number % len(models)])
        for number in range(count)
    ]


def rules_of(assignments: Sequence[str]) -> Rules:
    """The rules with `key=value` changes. Raises UsageError for an unknown key or a value of the wrong type."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        merged = OmegaConf.to_object(
            OmegaConf.merge(OmegaConf.structured(Rules), OmegaConf.from_dotlist(list(assignments)))
        )
    except OmegaConfBaseException as error:
        raise UsageError(f"--rules {' '.join(assignments)}: {str(error).splitlines()[0]}") from error
    assert isinstance(merged, Rules)
    return merged


def script(argv: Sequence[str] | None = None, **defaults: Any) -> NoReturn:
    """The end of a script: run with these defaults and leave."""
    sys.exit(main(argv, replace(Defaults(), **defaults)))
