"""`r2v serve`: a server in front of agents that records what they ask an LLM."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING

from r2v.cli.options import Parser, add_allow_env, add_config_options, load_config
from r2v.errors import UsageError, needing
from r2v.log import logger

if TYPE_CHECKING:
    from r2v.serve.server import Listening


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add `serve`."""
    about = "serve an LLM to agents: requests pass unchanged, are recorded and booked, under a cap"
    parser = commands.add_parser(
        "serve",
        help=about,
        description="Serve an LLM to agents by Chat Completions, Responses and Messages. Requests pass unchanged; they "
        "are recorded and booked, and a cap holds. Stop it with Ctrl-C.",
    )
    parser.add_argument("--record", action="store_true", help="record the sessions of an LLM, without any routing")
    add_llm_options(parser)
    parser.add_argument("--port", dest="serve.port", metavar="PORT", help="port to listen on (default: 8484)")
    add_config_options(parser)
    add_allow_env(parser)
    parser.set_defaults(act=_act)


def add_llm_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the LLM, its cap and the server's folder."""
    parser.add_argument(
        "--llm",
        metavar="MODEL",
        help="the LLM, as openai:gpt-6.1-terra or anthropic:claude-opus-5-5 (default: `teacher` of the configuration)",
    )
    parser.add_argument(
        "--llm-url",
        dest="teacher.base_url",
        metavar="URL",
        help="another endpoint of the LLM (default: its provider's)",
    )
    parser.add_argument(
        "--max-usd", dest="teacher.max_usd", metavar="USD", help="cap on everything that is forwarded (default: none)"
    )
    parser.add_argument(
        "--name",
        dest="serve.name",
        metavar="NAME",
        help="books and sessions are in data/served/NAME (default: default)",
    )


def llm_overrides(arguments: argparse.Namespace) -> None:
    """Write --llm as the configuration keys that it stands for. Raises UsageError for a model of no provider."""
    if arguments.llm is None:
        return
    provider, colon, model = arguments.llm.partition(":")
    if not colon or provider not in ("openai", "anthropic") or not model:
        raise UsageError(f"--llm {arguments.llm:.100}: written provider:model, as openai:gpt-6.1-terra")
    vars(arguments)["teacher.provider"], vars(arguments)["teacher.model_name"] = provider, model


def _act(arguments: argparse.Namespace) -> int:
    if not arguments.record:
        raise UsageError("nothing to serve: add --record to forward to an LLM and record what agents ask it")
    llm_overrides(arguments)
    config = load_config(arguments)
    with needing("serve"):
        from r2v.serve.server import serve_until_stopped

    asyncio.run(serve_until_stopped(config, record=True, ready=_tell))
    return 0


def _tell(place: Listening) -> None:
    key = "$R2V_SERVE_KEY" if place.keys_file is None else f"$(cut -d' ' -f2 {place.keys_file})"
    logger.info("serving at %s; sessions, books and log are in %s", place.url, place.folder)
    print(f'export ANTHROPIC_BASE_URL={place.url} ANTHROPIC_API_KEY="{key}"')
    print(f'export OPENAI_BASE_URL={place.url}/v1 OPENAI_API_KEY="{key}"', flush=True)
