"""The served pair: at each step the small model proposes, and the bundle's router decides who acts.

    decision = await pair.decide(request, session, threshold)
    decision.source, decision.reason           # "llm", "score"

The rule is the evaluation's: the LLM acts iff the score reaches the threshold and its calls are not used up. The small
model never acts outside the bundle's domain, nor if the LLM would refuse to continue from its turn. A circuit breaker
pauses a failing small model, and then tries it with one request.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from r2v.config import Config, InferenceConfig, PolicyConfig
from r2v.errors import InputError, UsageError
from r2v.llm.providers.teacher import POLICY_KEYS, asked_rate
from r2v.llm.waves import Waves
from r2v.log import logger
from r2v.rollout.actors import StepView
from r2v.rollout.gates import ScoreGate
from r2v.router.escalation import escalates, needs_score, recorded_score
from r2v.serve.accounts.books import Books, CapReached
from r2v.serve.bundle.domain import Domain, read_domain
from r2v.serve.bundle.manifest import Bundle, read_bundle
from r2v.serve.bundle.play_bundle import bundle_gate, bundle_settings, local_pair
from r2v.serve.pair.small import APISmall, LocalSmall, Small, SmallFailed, SmallProposal
from r2v.serve.pair.state import NotReadable, served_view
from r2v.serve.request import ClientRequest
from r2v.serve.sessions import AgentSession
from r2v.serve.transport.endpoints import endpoint
from r2v.serve.transport.upstream import Upstream
from r2v.wire.chat import NotThisFormat
from r2v.wire.message import Message, mapping

Source = Literal["small", "llm"]
_FAILURES = 3
"""Consecutive failures after which the small model is paused."""
_PAUSE = 30.0
"""Seconds of the pause, in which clients do not wait for a model that is down."""
BUDGET = "r2v:budget="


@dataclass(frozen=True, kw_only=True)
class ServedDecision:
    """The author of a step and the reason. reason: score, budget, threshold, repeat, or the obstacle to the small
    model."""

    source: Source
    reason: str
    score: float | None = None
    threshold: float | None = None
    step: int | None = None
    features: Mapping[str, float] = field(default_factory=dict)
    proposal: SmallProposal | None = None
    router_cost: float = 0.0
    """USD of measuring the features, at list prices."""

    @property
    def logged(self) -> dict[str, Any]:
        """Fields for the traffic log. The rule is deterministic, so the probability is 1."""
        fields = {"source": self.source, "reason": self.reason, "probability": 1.0, "step": self.step}
        return fields | {"score": self.score, "threshold": self.threshold, "features": dict(self.features)}


class Breaker:
    """Circuit breaker: opens after `_FAILURES` failures in a row, and after `_PAUSE` seconds lets one request try."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._failures, self._open_until, self._probing = now, 0, 0.0, False

    @property
    def closed(self) -> bool:
        """True if the model may be asked now. The caller must then report success or failure."""
        if self._failures < _FAILURES:
            return True
        if self._probing or self._now() < self._open_until:
            return False
        self._probing = True
        return True

    @property
    def healthy(self) -> bool:
        """True unless the last `_FAILURES` requests all failed."""
        return self._failures < _FAILURES

    def succeeded(self) -> None:
        """Report an answer of the model."""
        self._failures, self._probing = 0, False

    def failed(self) -> None:
        """Report a failure of the model."""
        self._failures, self._probing = self._failures + 1, False
        self._open_until = self._now() + _PAUSE


class ServedPair:
    """A bundle's small model, gate and domain behind the server."""

    def __init__(
        self, bundle: Bundle, domain: Domain, inference: InferenceConfig, gate: ScoreGate, small: Small
    ) -> None:
        self.domain, self.breaker = domain, Breaker()
        self._inference, self._gate, self._small = inference, gate, small
        self._threshold = bundle.manifest.threshold
        self._points = _operating_points(bundle)

    @property
    def model_names(self) -> tuple[str, ...]:
        """Model names of the pair, and of the small model alone."""
        return ("r2v", *(f"{BUDGET}{budget:g}" for budget in self._points), "small")

    def threshold_of(self, name: str) -> float | None:
        """Return the threshold of a model name of the pair; None for another name."""
        if name == "r2v":
            return self._threshold
        if name == "small":
            return 1.0
        if not name.startswith(BUDGET):
            return None
        try:
            budget = float(name.removeprefix(BUDGET))
        except ValueError:
            return None
        within = [point for point in self._points if point <= budget + 1e-9]
        return self._points[max(within)] if within else 1.0

    async def decide(self, request: ClientRequest, session: AgentSession, threshold: float) -> ServedDecision:
        """Decide who answers a request. Raises CapReached if no cap covers even the request to the small model."""
        problem, view = self._view(request, session)
        if view is None:
            return ServedDecision(source="llm", reason=problem, threshold=threshold)
        before = session.decisions.get(request.conversation)
        if before == "llm":  # a retry gets the same author, so that the log has one author for each step
            return ServedDecision(source="llm", reason="repeat", threshold=threshold, step=view.step)
        if not needs_score(threshold) and escalates(None, threshold):
            return ServedDecision(source="llm", reason="threshold", threshold=threshold, step=view.step)
        proposal = await self.proposed(request, view)
        if isinstance(proposal, str):
            return ServedDecision(source="llm", reason=proposal, threshold=threshold, step=view.step)
        evidence: dict[str, Any] = {"threshold": threshold, "step": view.step, "proposal": proposal}
        if before == "small":
            return ServedDecision(source="small", reason="repeat", **evidence)
        if not needs_score(threshold):
            return ServedDecision(source="small", reason="threshold", **evidence)
        measured = await self._gate.extractor.measure(view, proposal.reply, self._gate.instruments)
        score = recorded_score(self._gate.score(measured.features, view.seed, view.task_id, view.step))
        evidence |= {"score": score, "features": measured.features, "router_cost": measured.bill.cost}
        if not escalates(score, threshold):
            return ServedDecision(source="small", reason="score", **evidence)
        if view.llm_calls >= self._inference.max_llm_calls:
            return ServedDecision(source="small", reason="budget", **evidence)
        return ServedDecision(source="llm", reason="score", **evidence)

    async def instead(self, request: ClientRequest, session: AgentSession, threshold: float) -> ServedDecision | None:
        """Return the small model's answer while the LLM is down; None if it may not answer, or fails too."""
        _, view = self._view(request, session)
        proposal = None if view is None else await self.proposed(request, view)
        if view is None or isinstance(proposal, str):
            return None
        return ServedDecision(source="small", reason="LLM down", threshold=threshold, step=view.step, proposal=proposal)

    def _view(self, request: ClientRequest, session: AgentSession) -> tuple[str, StepView | None]:
        """Return the step, or None and the obstacle to the small model."""
        try:
            problem = self.domain.problem(request.parsed) or _goes_on(request)
            if problem is not None:
                return problem, None
            return "", served_view(request.body.values, session, self.domain, self._inference)
        except (NotThisFormat, NotReadable) as error:
            return f"unreadable conversation ({error!s:.80})", None

    async def proposed(self, request: ClientRequest, view: StepView) -> SmallProposal | str:
        """Return the small model's turn, or the reason for its failure. Raises CapReached."""
        if not self.breaker.closed:
            return "small model down"
        try:
            proposal = await self._small.propose(request, view)
        except SmallFailed as error:
            self.breaker.failed()
            return f"small model failed: {error!s:.100}"
        except CapReached:  # no failure of the model: a probe that it stopped must not keep the breaker open
            self.breaker.succeeded()
            raise
        self.breaker.succeeded()
        misfit = _misfit(request, proposal.wire_reply.message)
        return proposal if misfit is None else f"small model failed: {misfit}"


def _misfit(request: ClientRequest, turn: Message) -> str | None:
    """Return the violation of the request's tools or tool_choice by a turn; None if it is an answer."""
    choice = request.body.values.get("tool_choice")
    kind = choice if isinstance(choice, str) else mapping(choice).get("type")
    if not turn.calls:
        return (
            "no call of a tool, which tool_choice demands" if kind in ("required", "any", "function", "tool") else None
        )
    if kind == "none":
        return "a call of a tool, which tool_choice excludes"
    named = mapping(choice).get("name") or mapping(mapping(choice).get("function")).get("name")
    offered = {tool.name for tool in request.parsed.functions if named in (None, tool.name)}
    stray = next((call.name for call in turn.calls if call.name not in offered), None)
    return None if stray is None else f"a call of {stray:.60}, which is not offered"


def _goes_on(request: ClientRequest) -> str | None:
    """Return the reason that the LLM cannot continue from a turn of the small model; None if it can.

    Anthropic's models that think within a budget (`thinking.type: enabled`) refuse a tool loop whose last turn does not
    begin with a thought of theirs; adaptive thinking accepts such turns.
    OpenAI's models accept calls without reasoning.
    """
    thinking = mapping(request.body.values.get("thinking")).get("type")
    if request.wire == "messages" and thinking == "enabled" and request.body.values.get("tools"):
        return "thinking within a budget"
    return None


def _operating_points(bundle: Bundle) -> dict[float, float]:
    """Return budget -> threshold as placed on calibration tasks. The budget is the one that a threshold was placed for
    (imputed router), or the executed share of LLM steps, rounded to hundredths. Raises InputError."""
    path = bundle.folder / "router" / "threshold.json"
    try:
        recorded = json.loads(path.read_text())
        evaluated = recorded.get("evaluated") or ()
        points = {float(p.get("budget", round(float(p["llm_call_rate"]), 2))): float(p["tau"]) for p in evaluated}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: no thresholds of a bundle ({error})") from None
    return dict(sorted(points.items()))


@asynccontextmanager
async def served_pair(folder: Path, config: Config, upstream: Upstream, books: Books) -> AsyncIterator[ServedPair]:
    """Load a bundle while the block runs. A small model behind an API is the bundle's, unless the configuration names
    one (`policy.provider`). Raises as `load_pair` does."""

    def behind_api(policy: PolicyConfig) -> APISmall:
        target = endpoint(policy.as_endpoint(replace(config.teacher, engine=None)), POLICY_KEYS)
        return APISmall(target, asked_rate(target.teacher, keys=POLICY_KEYS), upstream, books)

    waves = Waves(workers=1)
    async with waves.open():
        yield load_pair(folder, config, waves, behind_api)


def load_pair(folder: Path, config: Config, waves: Waves, behind_api: Callable[[PolicyConfig], APISmall]) -> ServedPair:
    """Return the pair of a bundle. behind_api: constructor of a small model behind an API. Raises InputError for a
    damaged bundle or one of an earlier R2V, UsageError if the small model cannot be asked, EnvironmentFault if a
    package for its weights is not installed."""
    bundle = read_bundle(folder)
    domain, settings = read_domain(folder), bundle_settings(bundle)
    small: Small
    if settings.policy.is_api:
        if "samples" in settings.router.features:
            raise UsageError(f"{folder}: its router reads samples of the small model, which is behind an API")
        policy = config.policy if config.policy.is_api else settings.policy
        small = behind_api(policy.with_native_tools())
        gate = bundle_gate(bundle, settings, None, None, domain.untrusted)
    else:
        model, verifier = local_pair(bundle, settings, waves, config.rollout, domain.specs)
        small = LocalSmall(model)
        gate = bundle_gate(bundle, settings, model, verifier, domain.untrusted)
    logger.info(
        "  bundle loaded: bundle=%s tools=%d threshold=%g", folder, len(domain.tools), bundle.manifest.threshold
    )
    return ServedPair(bundle, domain, settings.inference, gate, small)
