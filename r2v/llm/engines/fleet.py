"""Fleet: a stage's engine servers, one per visible GPU, or the one external server behind a URL.

    servers = fleet_of(engine, model, home=..., gpus=["0", "1"])

All policies of a base model share its servers, each as a LoRA adapter. Servers run until this process ends.
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
    """Return the servers for this model; own ones begin to load it. Raises EnvironmentFault if no engine is installed
    or the URL does not answer, UsageError if the external server cannot serve the model."""
    key = (engine, model, home, tuple(gpus))
    if key not in _FLEETS:
        if engine == VLLM:
            python = engine_python(home)
            own = [OwnServer(python, model, gpu) for gpu in gpus] or [OwnServer(python, model)]
            for server in own:
                atexit.register(server.stop)
                server.begin()
            logger.info(
                "  engine selected: vllm=%s servers=%d serves=%s",
                VLLM_VERSION,
                len(own),
                "verifiers" if model.pooling else "policies",
            )
            _FLEETS[key] = own
        else:
            _FLEETS[key] = [_external(server_root(engine), model)]
    return _FLEETS[key]


def visible_gpus(count: int) -> list[str]:
    """Return the first `count` GPUs of CUDA_VISIBLE_DEVICES, by its names; 0 to count - 1 where it is unset."""
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[:count] if named else [str(number) for number in range(count)]


def engine_facts(engine: str, home: Path) -> dict[str, Any]:
    """Return the manifest's entry on the engine: the configured identity and the version and models in use."""
    facts = engine_identity(engine)
    if engine == VLLM:
        installed = installed_version(home)
        return facts | {"distribution": installed[0] if installed else None}
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
    context = served[BASE_NAME].get("max_model_len")
    if isinstance(context, int) and context < model.max_model_len:
        raise UsageError(
            f"policy.engine={root}: takes {context} tokens, policy.max_seq_len is {model.max_model_len}; lower it, or "
            "start the server with more"
        )
    version = str(_get(root, "/version").get("version", "unknown")).partition("+")[0]
    if version != VLLM_VERSION:
        logger.warning("  engine version untested: url=%s vllm=%s tested=%s", root, version, VLLM_VERSION)
    logger.info("  engine selected: url=%s vllm=%s model=%s", root, version, served[BASE_NAME].get("root", BASE_NAME))
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
