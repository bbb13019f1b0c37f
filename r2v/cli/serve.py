"""`r2v serve` and `r2v record`: a server for agents, or for one command."""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from r2v.cli.options import Parser, add_config_options, add_word, load_config
from r2v.errors import UsageError
from r2v.log import logger

if TYPE_CHECKING:
    from r2v.config import Config
    from r2v.serve.server import Listening


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add `serve` and `record`."""
    about = "serve a trained pair, or an LLM, to agents: requests are routed, booked and recorded, under a cap"
    more = "Agents use Chat Completions, Responses or Messages, which the LLM gets unchanged. Ctrl-C stops it."
    parser = add_word(commands, "serve", about, _act, more=more)
    parser.add_argument(
        "bundle",
        nargs="?",
        type=Path,
        metavar="DIR",
        help="bundle of `r2v export`, whose pair is served (default: none)",
    )
    parser.add_argument("--record", action="store_true", help="record the text of sessions (default: only figures)")
    add_llm_option(parser)
    add_config_options(parser)
    parser.set_defaults(sends_keys=True)
    about = "run a command, and record its LLM requests, their cost and its success"
    more = (
        "OPENAI_BASE_URL, ANTHROPIC_BASE_URL and their keys point to the command's own server. It succeeds if it exits "
        "with 0, or by its post to R2V_FEEDBACK_URL. The exit code is the command's."
    )
    record = add_word(commands, "record", about, _record, more=more)
    add_llm_option(record)
    record.add_argument("--task", metavar="ID", default="task", help="the task's id in the records (default: task)")
    add_config_options(record)
    record.set_defaults(sends_keys=True)
    record.add_argument("command", nargs="+", metavar="CMD", help="the command and its arguments, after --")


def add_llm_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the LLM."""
    parser.add_argument(
        "--llm",
        metavar="MODEL",
        help="the LLM, as openai:gpt-6.1-terra or anthropic:claude-opus-5-5 (default: `teacher` of the configuration)",
    )


def llm_overrides(arguments: argparse.Namespace) -> None:
    """Replace --llm by its configuration keys. Raises UsageError for a model without a provider."""
    if arguments.llm is None:
        return
    provider, colon, model = arguments.llm.partition(":")
    if not colon or provider not in ("openai", "anthropic") or not model:
        raise UsageError(f"--llm {arguments.llm:.100}: written provider:model, as openai:gpt-6.1-terra")
    vars(arguments)["teacher.provider"], vars(arguments)["teacher.model_name"] = provider, model


def _act(arguments: argparse.Namespace) -> None:
    if not arguments.record and arguments.bundle is None:
        raise UsageError("nothing to serve: name a bundle, or add --record to record what agents ask an LLM")
    llm_overrides(arguments)
    config = load_config(arguments)
    if config.serve.shadow and arguments.bundle is None:
        raise UsageError("serve.shadow=true: without a bundle there is no router; name one, or leave it out")
    if arguments.bundle is not None and config.teacher.provider == "scripted":
        config = _with_llm_of(config, arguments.bundle)
    from r2v.serve.server import serve_until_stopped

    asyncio.run(serve_until_stopped(config, record=arguments.record, ready=_announce, bundle=arguments.bundle))


def _record(arguments: argparse.Namespace) -> int:
    llm_overrides(arguments)
    config = load_config(arguments)
    from r2v.serve.record import record_command

    done = asyncio.run(record_command(arguments.command, config, task=arguments.task))
    logger.info("  recording finished: summary=%s", done.line)
    return done.exit_code


def _with_llm_of(config: Config, bundle: Path) -> Config:
    """Return the configuration with the LLM of a bundle's evaluation."""
    from r2v.serve.bundle.manifest import read_bundle
    from r2v.serve.bundle.play_bundle import bundle_settings

    teacher = bundle_settings(read_bundle(bundle)).teacher
    if teacher.provider == "scripted":
        raise UsageError(
            f"{bundle}: was evaluated with a benchmark's expert, which answers nobody else; name an LLM, such as --llm "
            "openai:gpt-6.1-terra"
        )
    return replace(config, teacher=replace(config.teacher, provider=teacher.provider, model_name=teacher.model_name))


def _announce(server: Listening) -> None:
    key = "$R2V_SERVE_KEY" if server.keys_file is None else f"$(cut -d' ' -f2 {server.keys_file})"
    logger.info("serving: url=%s folder=%s", server.url, server.folder)
    print(f'export ANTHROPIC_BASE_URL={server.url} ANTHROPIC_API_KEY="{key}"')
    print(f'export OPENAI_BASE_URL={server.url}/v1 OPENAI_API_KEY="{key}"', flush=True)
