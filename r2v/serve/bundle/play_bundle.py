"""Routed actor of a bundle: its policy, verifier, router and threshold as one actor.

    bundle = read_bundle(Path("bundle"))                  # every file is hashed before use
    waves = Waves(workers=4)
    actor = routed_actor(bundle, benchmark, waves)
    episodes = play_many(waves, world, specs, actor)

In your own event loop, ask for each step:

    act = await actor.act(view)                           # opens threads and the LLM's journal, and closes them
    async with waves.open():                              # opens them once for all steps inside
        act = await actor.act(view)

The same models under the same prompts make the same decisions: a bundle reproduces the episodes of its evaluation.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from r2v.config import (
    CostConfig,
    InferenceConfig,
    PolicyConfig,
    RolloutConfig,
    RouterConfig,
    TeacherConfig,
    section,
)
from r2v.envs.base import Benchmark
from r2v.errors import InputError
from r2v.llm.waves import Waves
from r2v.rollout.actors import PricedModel, PricedVerifier, Routed
from r2v.rollout.gates import FeatureExtractor, ScoreGate
from r2v.rollout.model_factory import (
    priced_api_policy,
    priced_policy,
    priced_teacher,
    told_tools,
    verifier_scorer,
)
from r2v.router.baselines import instruments, score_function
from r2v.router.case_support import CaseIndex
from r2v.router.models import load
from r2v.serve.bundle.manifest import Bundle
from r2v.wire.message import ToolSpec

T = TypeVar("T")
_NOT_KEYS = {"policy": ("elision", "engine", "engine_verifier")}
"""Section -> entries that are no configuration keys. Settings are the hashed content of fingerprints, which also names
the rule of elision and the engine's version."""


@dataclass(frozen=True, kw_only=True)
class BundleSettings:
    """Sections of the configuration of a bundle's evaluation."""

    policy: PolicyConfig
    inference: InferenceConfig
    router: RouterConfig
    cost: CostConfig
    teacher: TeacherConfig


def routed_actor(
    bundle: Bundle,
    benchmark: Benchmark,
    waves: Waves,
    *,
    rollout: RolloutConfig | None = None,
) -> Routed:
    """Return the routed pair of a bundle in a benchmark's worlds, behind a wave engine.

    The LLM is the one of the bundle's settings: a provider's, with its requests and bills in the project's journal, or
    the benchmark's scripted expert. Raises InputError if the bundle's settings are unreadable, the policy was trained
    on prompts of another version, or its base model is missing; UsageError if the LLM cannot be asked.
    """
    settings = bundle_settings(bundle)
    tools = told_tools(settings.policy, benchmark)
    verifier = None
    if settings.policy.is_api:
        slm = priced_api_policy(settings.policy, settings.teacher, settings.cost, waves)
    else:
        slm, verifier = local_pair(bundle, settings, waves, rollout or RolloutConfig(), tools)
    gate = bundle_gate(bundle, settings, slm, verifier, benchmark.capabilities.untrusted)
    llm = priced_teacher(settings.teacher, settings.cost, benchmark, waves)
    return Routed(slm, llm, gate, bundle.manifest.threshold, settings.inference.max_llm_calls)


def local_pair(
    bundle: Bundle, settings: BundleSettings, waves: Waves, rollout: RolloutConfig, tools: Sequence[ToolSpec]
) -> tuple[PricedModel, PricedVerifier | None]:
    """Return the small policy with weights in this process, and its verifier if the bundle has one."""
    policy, inference, cost = settings.policy, settings.inference, settings.cost
    slm = priced_policy(policy, bundle.policy, cost, inference, rollout, waves, tools)
    if not bundle.verifier.is_dir():
        return slm, None
    scorer = verifier_scorer(policy, bundle.verifier, inference, rollout, waves, tools)
    return slm, PricedVerifier(scorer, cost.slm_price)


def bundle_gate(
    bundle: Bundle, settings: BundleSettings, slm: PricedModel | None, verifier: PricedVerifier | None, untrusted: str
) -> ScoreGate:
    """Return the gate of a bundle. slm: None if its features need no samples."""
    router, inference = settings.router, settings.inference
    samples = inference.num_candidates if "samples" in router.features else 0
    cases = CaseIndex.load(bundle.cases) if bundle.cases.is_dir() else None
    extractor = FeatureExtractor(
        inference, verifier=verifier, slm=slm, num_samples=samples, untrusted=untrusted, cases=cases
    )
    models = {name: load(path, router.model) for name, path in bundle.routers.items()}
    score = bundle.manifest.score
    return ScoreGate(score_function(score, models), extractor, instruments(score, router.features))


def bundle_settings(bundle: Bundle) -> BundleSettings:
    """Return the settings of a bundle. Raises InputError if they are unreadable, or the policy was trained on prompts
    of another version."""
    path = bundle.folder / "settings.json"
    try:
        settings = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not the settings of a bundle ({error}); export it again") from None
    policy = _section(bundle, settings, "policy", PolicyConfig)
    if policy.prompt_version != bundle.manifest.prompt_version:
        raise InputError(
            f"{bundle.folder}: its policy was trained on prompts of version {bundle.manifest.prompt_version}, this R2V "
            f"writes version {policy.prompt_version}; train and export it again, or use the R2V that wrote it"
        )
    return BundleSettings(
        policy=policy,
        inference=_section(bundle, settings, "inference", InferenceConfig),
        router=_section(bundle, settings, "router", RouterConfig),
        cost=_section(bundle, settings, "cost", CostConfig),
        teacher=_section(bundle, settings, "teacher", TeacherConfig),
    )


def _section(bundle: Bundle, settings: dict[str, Any], name: str, kind: type[T]) -> T:
    written = settings.get(name)
    if not isinstance(written, dict):
        raise InputError(f"{bundle.folder / 'settings.json'}: has no section {name}; export the bundle again")
    return section(kind, {key: value for key, value in written.items() if key not in _NOT_KEYS.get(name, ())})
