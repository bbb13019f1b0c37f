"""Training tools: the tools in the prompts of a policy and its verifier in training, as recorded with their data.

While acting, the tools are those of the world itself (`r2v.envs.base.tools_of`).
"""

from __future__ import annotations

from r2v.config import EnvConfig
from r2v.data.tools import RecordedTool, Tools
from r2v.envs.base import load_benchmark, tools_of
from r2v.log import logger
from r2v.wire.message import ToolSpec


def recorded(tools: tuple[ToolSpec, ...]) -> Tools:
    """Return a world's tools in their recorded form."""
    return tuple(RecordedTool(name=t.name, description=t.description, parameters=t.parameters) for t in tools)


def tool_specs(tools: Tools) -> tuple[ToolSpec, ...]:
    """Return recorded tools as specs, for prompts."""
    return tuple(ToolSpec(name=t.name, description=t.description, parameters=t.parameters) for t in tools)


def of_fresh_world(env: EnvConfig) -> Tools:
    """Return the tools of a fresh world, for data of an earlier version, which recorded none; log it. Raises UsageError
    where there is no such world."""
    logger.info("  data without recorded tools, using those of a fresh world: benchmark=%s", env.benchmark)
    return recorded(tools_of(load_benchmark(env.benchmark, env.options)))
