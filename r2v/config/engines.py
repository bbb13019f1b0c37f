"""Serving engines: their names, the pinned version, and the options that decide results.

Installation (`r2v.llm.engines.install`), launch (`r2v.llm.engines.release`) and fingerprints all read them from here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from r2v.constraints import check

LOCAL, VLLM, JOB = "local", "vllm", "job"
"""`policy.engine`: this process, or a server that the job starts; anything else is a server's URL. `teacher.engine`: a
server that the stage starts, or a Slurm job of its own."""
ENGINE_KEY_ENV = "R2V_ENGINE_KEY"
"""Environment variable with the key of an external server."""
VLLM_VERSION = "0.32.0"
"""The version of vLLM that R2V installs and starts."""
VLLM_FLAGS = (
    "--logprobs-mode=processed_logits",
    "--generation-config=vllm",
    "--enable-prefix-caching",
    "--enable-lora",
    "--no-async-scheduling",
    "--seed=0",
)
"""Options that decide an answer; model, dtype and context length come from the policy."""
CHAT_FLAGS = ("--generation-config=vllm", "--enable-prefix-caching", "--seed=0")
"""The same for a teacher's server, which answers chat completions."""
POOLING_FLAGS = (
    "--runner=pooling",
    "--convert=embed",
    '--pooler-config={"pooling_type":"LAST","use_activation":false}',
    "--enable-prefix-caching",
    "--enable-lora",
    "--seed=0",
)
"""The same for a verifier's server, which returns the last token's hidden state unchanged."""


@dataclass(frozen=True, kw_only=True)
class EngineRecord:
    """A manifest's record of the engine that a stage used."""

    name: str
    """vllm: servers that the stage started; external: a server of somebody else."""
    version: str | None = None
    """Version of vLLM."""
    flags: tuple[str, ...] = ()
    """Options of an own server that decide its answers."""
    distribution: str | None = None
    """Package that an own engine was installed from."""
    models: tuple[str, ...] = ()
    """Models that an external server reports."""


def engine_identity(engine: str) -> dict[str, Any]:
    """Return the part of an engine that decides results, for fingerprints. Of an external server it is only the kind:
    the planner cannot query it, and the stage that uses it records its models."""
    if engine == VLLM:
        return {"name": VLLM, "version": VLLM_VERSION, "flags": list(VLLM_FLAGS)}
    return {"name": "external"}


def server_root(engine: str) -> str:
    """Return the root of a server's URL, without a trailing /v1 or slash."""
    return engine.rstrip("/").removesuffix("/v1").rstrip("/")


def require_url(key: str, url: str, *, key_variable: str, others: str = "") -> None:
    """Raise UsageError if a setting is no URL of a server, or holds a secret, which is not repeated: settings are
    stored with every artifact. `key_variable`: the setting for the key; `others`: further allowed values, as text."""
    holds_none = f"holds no key, user, query or fragment: name the key in {key_variable}"
    check(not re.search("[@?#]", url), key, holds_none, "a URL with one")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        is_host = ":" in host or re.fullmatch(r"[\w.-]+", host)  # in brackets urlsplit takes IPv6 alone
        is_url = is_host and port != 0 and parts.scheme in ("http", "https") and re.fullmatch("[!-~]+", url)
    except ValueError:  # brackets without an address, a port beyond 65535
        is_url = None
    rule = f"is {others}a URL such as http://localhost:8000/v1 (http or https, in ASCII, with a port up to 65535)"
    check(bool(is_url), key, rule, url)
