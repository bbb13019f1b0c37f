"""Method actors: every method of `r2v.config.methods` as an actor, over the same models, world and reply cache.

    runner = MethodRunner.of(settings, work, policy=..., verifier=..., router=...)
    cell = runner.cell("r2v", specs, tau=0.4)
    runner.player.play([cell])
    episodes = (episode for (episode,) in runner.player.records(cell))

Methods that share a history share its replies, so ten methods cost little more than two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from r2v.config import (
    CostConfig,
    EnvConfig,
    InferenceConfig,
    PerturbationsConfig,
    PolicyConfig,
    RolloutConfig,
    TeacherConfig,
)
from r2v.config.evaluation import IMPUTED
from r2v.config.methods import METHODS, OURS, ROUTERS
from r2v.data.episode import Episode
from r2v.envs.base import load_benchmark
from r2v.errors import InputError, UsageError
from r2v.evaluation.acting.method_identity import MethodIdentity
from r2v.llm.waves import Waves
from r2v.rollout.actors import Actor, BestOfK, GreedyActor, PricedVerifier, Routed
from r2v.rollout.counterfactual import play_oracle
from r2v.rollout.gates import FeatureExtractor, ScoreGate
from r2v.rollout.model_factory import (
    Payer,
    engine,
    priced_api_policy,
    priced_policy,
    priced_teacher,
    told_tools,
    verifier_scorer,
)
from r2v.rollout.session import EpisodeSpec, RolloutWorld
from r2v.rollout.sites import SitePool
from r2v.rollout.stage_rollouts.features import FeatureRollout
from r2v.rollout.work_queue import BlockPlayer, Cell
from r2v.router.baselines import instruments, score_function
from r2v.router.case_support import CaseIndex
from r2v.router.models import RouterModel, load
from r2v.storage.artifact import Work
from r2v.storage.artifact_manifest import json_sha256


class Sections(Protocol):
    """The settings that models and world are made from; every stage that plays episodes has these."""

    env: EnvConfig
    teacher: TeacherConfig
    policy: PolicyConfig
    perturbations: PerturbationsConfig
    inference: InferenceConfig
    cost: CostConfig
    rollout: RolloutConfig


@dataclass
class MethodRunner:
    """Models, world and routers, loaded and ready to play any method."""

    waves: Waves
    player: BlockPlayer
    """Plays the episodes that the project's cache lacks."""
    identity: MethodIdentity
    world: RolloutWorld
    slm: GreedyActor
    make_teacher: Callable[[], GreedyActor]
    """Opens the LLM: a provider's client with its key, or the benchmark's scripted expert."""
    extractor: FeatureExtractor
    inference: InferenceConfig
    features: Sequence[str] = ()
    """Feature groups of the trained routers."""
    routers: dict[str, RouterModel] = field(default_factory=dict)
    variants: dict[str, GreedyActor] = field(default_factory=dict)
    """Other policies by method name, e.g. slm_bc_only."""

    @classmethod
    def of(
        cls,
        cfg: Any,
        work: Work,
        *,
        policy: Path | None,
        verifier: Path | None = None,
        router: Path | None = None,
        variants: dict[str, Path | None] | None = None,
        num_samples: int = 0,
        logprobs: bool = True,
    ) -> MethodRunner:
        """Load the given models: exported policies, a verifier, a folder of routers. Plays and payments belong to the
        attempt of `work`. logprobs: False if no method reads the log-probabilities of greedy replies."""
        sections: Sections = cfg
        configured = cfg.router.model if hasattr(cfg, "router") else None
        cases = work.inputs["case_support"].folder if "case_support" in work.inputs else None
        benchmark = load_benchmark(sections.env.benchmark, sections.env.options)
        policy_config, teacher = sections.policy, sections.teacher
        endpoint = policy_config.as_endpoint(teacher) if policy_config.is_api else teacher
        waves = engine(sections.rollout, benchmark, endpoint)
        payer, tools = Payer.of(work), told_tools(sections.policy, benchmark)

        def greedy(weights: Path | None) -> GreedyActor:
            if policy_config.is_api:
                slm = priced_api_policy(policy_config, teacher, sections.cost, waves, payer)
            else:
                slm = priced_policy(
                    policy_config,
                    weights,
                    sections.cost,
                    sections.inference,
                    sections.rollout,
                    waves,
                    tools,
                    logprobs=logprobs,
                )
            return GreedyActor(slm, "slm")

        slm = greedy(policy)
        scorer = (
            None
            if verifier is None
            else verifier_scorer(sections.policy, verifier, sections.inference, sections.rollout, waves, tools)
        )
        return cls(
            waves=waves,
            player=BlockPlayer.of(waves, work, sections.rollout),
            identity=MethodIdentity.of(
                cfg,
                benchmark,
                policy=policy,
                verifier=verifier,
                router=router,
                variants=variants,
                num_samples=num_samples,
                cases=cases,
            ),
            world=RolloutWorld(
                benchmark,
                sections.perturbations,
                sections.inference,
                SitePool.of(sections.rollout, benchmark, work.root),
            ),
            slm=slm,
            make_teacher=lambda: GreedyActor(
                priced_teacher(sections.teacher, sections.cost, benchmark, waves, payer), "llm_fallback"
            ),
            extractor=FeatureExtractor(
                sections.inference,
                verifier=None if scorer is None else PricedVerifier(scorer, sections.cost.slm_price),
                slm=slm.model,
                num_samples=num_samples,
                untrusted=benchmark.capabilities.untrusted,
                cases=None if cases is None else CaseIndex.load(cases),
            ),
            inference=sections.inference,
            features=tuple(cfg.router.features) if hasattr(cfg, "router") else (),
            routers={} if router is None else _routers(router, configured),
            variants={name: greedy(weights) for name, weights in (variants or {}).items()},
        )

    @cached_property
    def llm(self) -> GreedyActor:
        """The LLM, opened where somebody first asks it: who has no use for one needs no key."""
        return self.make_teacher()

    def routed_by(self, model: RouterModel) -> MethodRunner:
        """The same, with r2v routed by this model."""
        routers, configured = {**self.routers, OURS: model}, model.kind
        named = {**self.identity.routers, OURS: [configured, json_sha256(model.text())]}
        return replace(
            self,
            routers=routers,
            identity=replace(self.identity, routers=named),
            make_teacher=lambda: self.llm,
        )

    def feature_rollout(self) -> FeatureRollout:
        """Roll-outs of the small policy, with the executed gain of an LLM step at each state."""
        return FeatureRollout(world=self.world, slm=self.slm, llm=self.llm, extractor=self.extractor, waves=self.waves)

    def feature_cell(
        self,
        specs: Sequence[EpisodeSpec],
        what: str,
        *,
        tau: float | None = None,
        score: str = OURS,
        number: int = 0,
        keep_branches: bool = False,
    ) -> Cell:
        """Feature rollouts of these specs: by the small policy, or by r2v at threshold `tau`, strictly between 0 and 1,
        of the score of this method, in a round of this number."""
        rollout = replace(self.feature_rollout(), number=number, keep_branches=keep_branches)
        identity = self.identity.rollouts()
        if tau is not None:
            rollout = replace(rollout, routed=self.actor(score, tau), threshold=tau)
            other = {} if score == OURS else {"score": score}
            identity = self.identity.rollouts(tau=tau, router=self.identity.routers.get(score), **other)
        return rollout.cell(specs, what=what, identity=identity)

    def actor(self, method: str, tau: float | None = None) -> Actor:
        """The method as an actor; routed ones at threshold `tau`. Raises UsageError for a method that these models
        cannot play."""
        if method in ROUTERS:
            if tau is None:
                raise UsageError(f"{method} needs a threshold")
            needed = instruments(method, self.features)
            gate = ScoreGate(score_function(method, self.routers), self.extractor, needed)
            return Routed(self.slm.model, self.llm.model, gate, tau, self.inference.max_llm_calls)
        if method in self.variants:
            return self.variants[method]
        if method not in ACTORS:
            allowed = [*ACTORS, *self.variants, *ROUTERS, "oracle_router"]
            raise UsageError(f"evaluation.methods: {method} cannot be played here; allowed: {', '.join(allowed)}")
        return ACTORS[method](self)

    def cell(
        self,
        method: str,
        specs: Sequence[EpisodeSpec],
        tau: float | None = None,
        what: str = "",
        score: str | None = None,
    ) -> Cell:
        """The method's episodes of these specs, to be played; routed ones by the score of the method `score`, where
        that is not their own. The oracle's plays hold, behind each episode, the branches that it tried. Raises
        UsageError as `actor` does."""
        # The oracle is the one method that looks ahead, so it is no actor.
        actor = None if method == "oracle_router" else self.actor(score or method, tau)

        async def play(spec: EpisodeSpec) -> list[Episode]:
            if actor is None:
                tried: list[Episode] = []
                return [await play_oracle(self.world, spec, self.slm, self.llm, self.waves, tried), *tried]
            return [await self.world.start(spec).finish(actor, self.waves)]

        return Cell(
            what=what or method,
            identity=self.identity.method(method, tau, score),
            specs=[replace(spec, method=method) for spec in specs],
            play=play,
            kinds=(Episode,),
        )


def _routers(folder: Path, configured: str | None) -> dict[str, RouterModel]:
    """The trained routers by method. Raises InputError for imputed ones, whose labels were never executed."""
    if load(folder / f"{OURS}.json", configured).label == IMPUTED:
        raise InputError(
            f"{folder}: an imputed router, of whose labels nothing was executed: no evaluation plays it; train one on "
            "this benchmark (`r2v generate_router_features`, then `r2v train_router`)"
        )
    return {name: load(folder / f"{name}.json", configured) for name in TRAINED_ROUTERS}


def _best_of_k(runner: MethodRunner) -> Actor:
    """Best of K samples by the verifier; with one candidate there is nothing to choose and the policy acts."""
    if runner.inference.num_candidates == 1:
        return runner.slm
    if runner.extractor.verifier is None:
        raise UsageError("best_of_k needs a verifier")
    return BestOfK(runner.slm.model, runner.extractor.verifier, runner.inference, runner.inference.num_candidates)


ACTORS: dict[str, Callable[[MethodRunner], Actor]] = {
    "slm_only": lambda runner: runner.slm,
    "llm_only": lambda runner: runner.llm,
    "best_of_k": _best_of_k,
}
"""Method -> maker of its actor, for methods that are neither routed nor an oracle nor another policy
(`MethodRunner.variants`)."""

TRAINED_ROUTERS = tuple(method.name for method in METHODS.values() if method.trained_router)
"""Methods whose score is a model that the router stage fits and stores as <name>.json."""
