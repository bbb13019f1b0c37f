"""Serving engines: which one answers for the policy, its pinned version, and the options that decide its results.

One place: what is installed (`r2v.llm.engines.install`), how it is started (`r2v.llm.engines.release`) and what goes
into fingerprints are read from here.
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
"""Environment variable with the key of somebody else's server."""
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
"""Options that an answer depends on, beside the model, its type and its context length, which are the policy's."""
CHAT_FLAGS = ("--generation-config=vllm", "--enable-prefix-caching", "--seed=0")
"""The same of a server of a teacher, which is asked by chat completions."""
POOLING_FLAGS = (
    "--runner=pooling",
    "--convert=embed",
    '--pooler-config={"pooling_type":"LAST","use_activation":false}',
    "--enable-prefix-caching",
    "--enable-lora",
    "--seed=0",
)
"""The same of a server that scores: it hands back the last token's hidden state as it is."""


@dataclass(frozen=True, kw_only=True)
class EngineRecord:
    """What a manifest says of the engine that a stage played with: its identity, and what was really there."""

    name: str
    """vllm: servers of the stage's own; external: somebody else's."""
    version: str | None = None
    """Of vLLM."""
    flags: tuple[str, ...] = ()
    """Of a server of ours: the options that its answers depend on."""
    distribution: str | None = None
    """Of an engine of ours: the package that it came in."""
    models: tuple[str, ...] = ()
    """Of somebody else's server: what it said that it serves."""


def engine_identity(engine: str) -> dict[str, Any]:
    """What of an engine decides results, for fingerprints: of a server of somebody else's only that it is one, for who
    plans cannot ask it; the stage that plays records what it says of itself."""
    if engine == VLLM:
        return {"name": VLLM, "version": VLLM_VERSION, "flags": list(VLLM_FLAGS)}
    return {"name": "external"}


def server_root(engine: str) -> str:
    """The root of a server's URL, without a last /v1 or slash."""
    return engine.rstrip("/").removesuffix("/v1").rstrip("/")


def require_url(key: str, url: str, *, key_variable: str, others: str = "") -> None:
    """Raise UsageError where a setting is no URL of a server, or holds a secret, which is not repeated: settings are
    written beside every artifact. `key_variable`: the place for the key; `others`: further values that the setting may
    have."""
    holds_none = f"holds no key, user, query or fragment: name the key in {key_variable}"
    check(not re.search("[@?#]", url), key, holds_none, "a URL with one")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        is_host = ":" in host or re.fullmatch(r"[\w.-]+", host)  # in brackets urlsplit takes IPv6 alone
        is_url = is_host and port != 0 and parts.scheme in ("http", "https") and re.fullmatch("[!-~]+", url)
    except ValueError:  # brackets without an address, a port beyond 65535
        is_url = None
    check(
        bool(is_url),
        key,
        f"is {others}a URL such as http://localhost:8000/v1 (http or https, in ASCII, with a port up to 65535)",
        url,
    )
