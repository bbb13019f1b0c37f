"""Training tools: what a policy and its verifier are told while they learn, which is what was recorded with their data.

While they act the world itself says its tools (`r2v.envs.base.tools_of`).
"""

from __future__ import annotations

from r2v.config import EnvConfig
from r2v.data.tools import RecordedTool, Tools
from r2v.envs.base import load_benchmark, tools_of
from r2v.log import logger
from r2v.wire.message import ToolSpec


def recorded(tools: tuple[ToolSpec, ...]) -> Tools:
    """A world's tools as they are recorded."""
    return tuple(RecordedTool(name=t.name, description=t.description, parameters=t.parameters) for t in tools)


def told(tools: Tools) -> tuple[ToolSpec, ...]:
    """Recorded tools as a model is told them."""
    return tuple(ToolSpec(name=t.name, description=t.description, parameters=t.parameters) for t in tools)


def of_fresh_world(env: EnvConfig) -> Tools:
    """The tools of data that an earlier R2V recorded without: those of a fresh world, which a line says. Raises
    UsageError where there is none."""
    logger.info(
        "  the data comes without recorded tools: a fresh world of %s says them (policy.tools=none: none are told)",
        env.benchmark,
    )
    return recorded(tools_of(load_benchmark(env.benchmark, env.options)))
