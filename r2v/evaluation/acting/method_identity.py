"""Method identity: the plain values that determine an episode together with its spec, and key it in the cache.

    identity = MethodIdentity.of(cfg, benchmark, policy=policy, verifier=verifier, router=router)
    identity.method("r2v", 0.4)         # world, small policy, LLM, verifier, router, threshold

Models are named by the content of their files, so an episode is reused exactly where the same models play. A method's
identity holds only the models that it asks: another router leaves slm_only's episodes as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from r2v.config import PolicyConfig, identity
from r2v.config.methods import METHODS, ROUTERS, STRONG
from r2v.envs.base import Benchmark
from r2v.storage.artifact_manifest import json_sha256
from r2v.storage.files import content_sha256
from r2v.storage.integrity import content_files
from r2v.storage.model_identity import BASE_RECORD, base_sha256
from r2v.storage.weights import ADAPTERS, BUNDLED


@dataclass(frozen=True, kw_only=True)
class MethodIdentity:
    """The identities of everything that methods are played with."""

    world: Any
    """The benchmark with its version, perturbations and inference settings."""
    llm: Any
    policies: Mapping[str, Any]
    """By method: "" is the small policy, others are variants."""
    verifier: Any = None
    features: Any = None
    """Number of samples of the router's features, and the hash of the case index that they read."""
    routers: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        cfg: Any,
        benchmark: Benchmark,
        *,
        policy: Path | None,
        verifier: Path | None = None,
        router: Path | None = None,
        variants: Mapping[str, Path | None] | None = None,
        num_samples: int = 0,
        cases: Path | None = None,
    ) -> MethodIdentity:
        """Of the settings and weights that a `MethodRunner` is made of."""
        prices = identity(cfg.cost)
        trained = [method.name for method in METHODS.values() if method.trained_router]
        configured = cfg.router.model if hasattr(cfg, "router") else None
        return cls(
            world=world_identity(cfg, benchmark),
            llm=[identity(cfg.teacher), prices["llm"]],
            policies={
                name: [identity(cfg.policy), prices["slm"], _weights_of(cfg.policy, weights)]
                for name, weights in {"": policy, **(variants or {})}.items()
            },
            verifier=None if verifier is None else [identity(cfg.policy), _weights_of(cfg.policy, verifier)],
            features=num_samples if cases is None else [num_samples, content_of(cases)],
            routers={}
            if router is None
            else {name: [configured, content_of(router / f"{name}.json")] for name in trained},
        )

    def method(self, name: str, tau: float | None = None, score: str | None = None) -> dict[str, Any]:
        """Of a method's episodes; routed ones at threshold `tau`, by the score of the method `score`."""
        identity: dict[str, Any] = {"play": "episode", "world": self.world, "method": name}
        if name != STRONG:
            identity["slm"] = self.policies.get(name, self.policies[""])
        if METHODS[name].asks_llm:
            identity["llm"] = self.llm
        if name in ROUTERS:
            identity |= {"tau": tau, "features": self.features, "verifier": self.verifier}
            identity["router"] = self.routers.get(score or name)
            if score not in (None, name):
                identity["score"] = score
        elif name == "best_of_k":
            identity["verifier"] = self.verifier
        return identity

    def rollouts(self, **further: Any) -> dict[str, Any]:
        """The identity of roll-outs of the small policy about which the LLM or a verifier is asked; `further` names the
        other values that decide them."""
        identity = {"world": self.world, "slm": self.policies[""], "llm": self.llm}
        return {**identity, "features": self.features, "verifier": self.verifier, **further}


def world_identity(cfg: Any, benchmark: Benchmark) -> list[Any]:
    """Of the environment of these settings."""
    return [identity(cfg.env), benchmark.version, identity(cfg.perturbations), identity(cfg.inference)]


def _weights_of(policy: PolicyConfig, weights: Path | None) -> Any:
    """A hash of weights, and of the base where it is played as it is, or under adapters that don't record theirs; None
    of a model behind an API."""
    if policy.is_api:
        return None
    if weights is None:
        base_counts = policy.model_name not in BUNDLED
    else:
        base_counts = (weights / ADAPTERS).exists() and not (weights / BASE_RECORD).exists()
    if not base_counts:
        return content_of(weights)
    return [content_of(weights), base_sha256(policy.model_name, policy.revision, hash_weights=True)]


def content_of(path: Path | None) -> str | None:
    """A hash of the content of a folder or a file; None for no file."""
    if path is None:
        return None
    return json_sha256(content_files(path)) if path.is_dir() else content_sha256(path)
