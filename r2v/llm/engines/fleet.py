"""The fleet: the servers of a stage, one on each GPU that it sees, or the one behind a URL, shared by all policies.

    servers = fleet_of(engine, model, home=..., gpus=["0", "1"])

Every policy on the same base is an adapter of the same servers. They live until this process ends.
"""

from __future__ import annotations

import atexit
import json
import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from r2v.config.engines import VLLM, VLLM_VERSION, engine_identity, server_root
from r2v.errors import EnvironmentFault, UsageError
from r2v.llm.engines.release import BASE_NAME, ENGINE_KEY_ENV, EngineModel, engine_python, installed_version
from r2v.llm.engines.servers import EngineServer, ExternalServer, OwnServer
from r2v.llm.providers import keys
from r2v.log import logger

_FLEETS: dict[tuple[object, ...], Sequence[EngineServer]] = {}


def fleet_of(engine: str, model: EngineModel, *, home: Path, gpus: Sequence[str]) -> Sequence[EngineServer]:
    """The servers of this engine that serve this model; none is started yet. Raises EnvironmentFault where there is no
    engine, UsageError where somebody else's server cannot serve it."""
    key = (engine, model, home, tuple(gpus))
    if key not in _FLEETS:
        if engine == VLLM:
            python = engine_python(home)
            own = [OwnServer(python, model, gpu) for gpu in gpus] or [OwnServer(python, model)]
            for server in own:
                atexit.register(server.stop)
            logger.info(
                "  engine: vllm %s, %d %s for %s",
                VLLM_VERSION,
                len(own),
                "server" if len(own) == 1 else "servers",
                "verifiers" if model.pooling else "policies",
            )
            _FLEETS[key] = own
        else:
            _FLEETS[key] = [_external(server_root(engine), model)]
    return _FLEETS[key]


def visible_gpus(count: int) -> list[str]:
    """The GPUs that this process sees, as CUDA_VISIBLE_DEVICES names them."""
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[:count] if named else [str(number) for number in range(count)]


def engine_facts(engine: str, home: Path) -> dict[str, Any]:
    """What a manifest says of the engine that a stage played with: its identity, and what was really there."""
    facts = engine_identity(engine)
    if engine == VLLM:
        found = installed_version(home)
        return facts | {"distribution": found[0] if found else None}
    root = server_root(engine)
    models = _get(root, "/v1/models")["data"]
    return facts | {
        "version": str(_get(root, "/version").get("version", "unknown")),
        "models": sorted(str(m.get("root") or m["id"]) for m in models if not m.get("parent")),
    }


def _external(root: str, model: EngineModel) -> ExternalServer:
    served = {str(entry["id"]): entry for entry in _get(root, "/v1/models").get("data", [])}
    if BASE_NAME not in served:
        raise UsageError(
            f"policy.engine={root}: serves {', '.join(sorted(served)) or 'nothing'}, not {BASE_NAME}; start it with "
            "`r2v engine serve`"
        )
    room = served[BASE_NAME].get("max_model_len")
    if isinstance(room, int) and room < model.max_model_len:
        raise UsageError(
            f"policy.engine={root}: takes {room} tokens, policy.max_seq_len is {model.max_model_len}; lower it, or "
            "start the server with more"
        )
    version = str(_get(root, "/version").get("version", "unknown")).partition("+")[0]
    if version != VLLM_VERSION:
        logger.warning("  engine: %s is vllm %s; R2V is tested with %s", root, version, VLLM_VERSION)
    logger.info("  engine: %s, vllm %s, serves %s", root, version, served[BASE_NAME].get("root", BASE_NAME))
    return ExternalServer(root, keys.read_key(ENGINE_KEY_ENV))


def _get(root: str, path: str) -> Any:
    if key := keys.read_key(ENGINE_KEY_ENV):
        keys.announce(ENGINE_KEY_ENV, root)
    request = urllib.request.Request(f"{root}{path}", headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as response:
            return json.loads(response.read())
    except urllib.error.HTTPError as error:
        hint = f"; set {ENGINE_KEY_ENV}" if error.code == 401 else ""
        raise EnvironmentFault(f"policy.engine={root}: {path} answers {error.code}{hint}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise EnvironmentFault(f"policy.engine={root}: no server answers there ({reason})") from None
