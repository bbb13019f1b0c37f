"""R2V: distil a recorded LLM teacher into a small policy, verify its steps, route the hard ones back.

    import r2v

    config = r2v.load_config("configs/mrp.yaml")
    pipeline = r2v.Pipeline(config)
    pipeline.run()
    pipeline.results().to_frame()
    bundle = pipeline.export("outputs/bundles/desk")

The names in `__all__` are the public library and keep their meaning in a major version. All else is internal, except
the modules on the pages about extensions. Importing this package imports nothing; names are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from r2v.config import Config as Config
    from r2v.config import load
    from r2v.envs.base import Benchmark as Benchmark
    from r2v.envs.base import Environment as Environment
    from r2v.envs.base import Task as Task
    from r2v.errors import R2VError as R2VError
    from r2v.library.models import Policy as Policy
    from r2v.library.models import Verifier as Verifier
    from r2v.library.pipeline import Pipeline as Pipeline
    from r2v.library.results import Results as Results
    from r2v.library.router import Router as Router
    from r2v.library.server import Server as Server
    from r2v.library.teacher import Teacher as Teacher
    from r2v.serve.bundle.manifest import Bundle as Bundle
    from r2v.wire.message import Message as Message
    from r2v.wire.message import ToolSpec as ToolSpec

    load_config = load

__version__ = "0.1.0"

_MODULES = {
    "Benchmark": "r2v.envs.base",
    "Bundle": "r2v.serve.bundle.manifest",
    "Config": "r2v.config",
    "Environment": "r2v.envs.base",
    "Message": "r2v.wire.message",
    "Pipeline": "r2v.library.pipeline",
    "Policy": "r2v.library.models",
    "R2VError": "r2v.errors",
    "Results": "r2v.library.results",
    "Router": "r2v.library.router",
    "Server": "r2v.library.server",
    "Task": "r2v.envs.base",
    "Teacher": "r2v.library.teacher",
    "ToolSpec": "r2v.wire.message",
    "Verifier": "r2v.library.models",
    "load_config": "r2v.config",
}
__all__ = sorted([*_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'r2v' has no attribute {name!r}; it offers {', '.join(__all__)}")
    value = getattr(import_module(_MODULES[name]), "load" if name == "load_config" else name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
