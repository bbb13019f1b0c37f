"""Factory of the models of a configuration, priced and fitted to their contexts: teacher, small policy and verifier.

Heavy libraries are imported for local models only.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from r2v.config import CostConfig, InferenceConfig, PolicyConfig, RolloutConfig, TeacherConfig, identity
from r2v.config.engines import JOB, LOCAL, VLLM
from r2v.config.models import endpoint_identity
from r2v.envs.base import Benchmark, Demonstrated, tools_of
from r2v.envs.guard import guarded_expert
from r2v.errors import UsageError
from r2v.llm.answer_cache import AnswerCache, score_cache_key
from r2v.llm.engines.teacher import served_teacher
from r2v.llm.providers.bodies import system_prompt
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy
from r2v.llm.providers.factory import make_provider
from r2v.llm.providers.project_session import JointBudget, ProjectSession
from r2v.llm.providers.provider import Provider
from r2v.llm.providers.remote import ProviderRemote
from r2v.llm.providers.teacher import POLICY_KEYS, TEACHER_KEYS, EndpointKeys, asked_rate, teacher_rate
from r2v.llm.scripted import ScriptedBackend
from r2v.llm.types import Backend, ChatModel, Remote, Reply, Request, ScoreReply, ScoreRequest
from r2v.llm.waves import Waves
from r2v.policy.chat_template import say_once
from r2v.policy.half_elision import ELIDED, HalfElision, without_middle
from r2v.rollout.actors import SMALL_MODEL, PricedModel, Scorer
from r2v.rollout.bill import PromptCache
from r2v.storage.artifact import JOURNAL, Work
from r2v.storage.integrity import content_files
from r2v.storage.paths import REPLIES
from r2v.storage.weights import ADAPTERS
from r2v.verifier.judge import Judge
from r2v.wire.message import Message, ToolSpec

WIDEST = 5000
"""Most conversations, in worlds of this process, that wait for a provider's batches; a world of desk takes 24 KiB."""
WAVE_PATIENCE = 1.0
"""Seconds that a narrow wave waits for worlds of this process, whose steps take no longer than a pass of the model."""
_REMEMBERED: dict[str, AnswerCache] = {}
_JOINT: dict[Path, JointBudget] = {}
"""Folder of an artifact's journals -> budget, which teacher, small model and judge of one stage share."""
BYTES = 3
"""Bytes of prompt text per token, fewer than measured: estimates of tokens err on the high side."""
_AROUND = 8
"""Tokens that a provider adds around a message, at most."""


@dataclass(frozen=True, kw_only=True)
class Payer:
    """The payer of provider requests: a folder whose journals share `teacher.max_usd`, in the checkout at `root`, which
    shares replies and a cap."""

    folder: Path
    root: Path = Path()
    anew: bool = False
    """Whether what the project has been answered is asked again."""
    name: str = ""
    """Folder, below it, of the journals of one of several models."""
    joint: JointBudget = field(default_factory=JointBudget, compare=False)
    """Of the models that are asked for it in this process."""

    @classmethod
    def of(cls, work: Work) -> Payer:
        """Return the payer of an artifact in the making."""
        folder = work.folder / JOURNAL
        return cls(
            folder=folder, root=work.root, anew=work.anew, joint=_JOINT.setdefault(folder.resolve(), JointBudget())
        )


_UNNAMED = Payer(folder=REPLIES / "unnamed")
"""Pays for what no artifact and no run asks."""


def _memory(weights: Path | None, *sections: Any) -> AnswerCache:
    """Return this process's cache of a model's answers; stages that play the same weights share it."""
    content = None if weights is None else content_files(weights)
    return _REMEMBERED.setdefault(json.dumps([content, [identity(section) for section in sections]]), AnswerCache())


def engine(rollout: RolloutConfig, benchmark: Benchmark, teacher: TeacherConfig | None = None) -> Waves:
    """Return a wave engine as wide as these conversations may be, with threads for worlds of this kind. `teacher`: the
    LLM that they ask; None: no LLM."""
    able = benchmark.capabilities
    waiting = able.waits or able.needs_network
    return Waves(
        workers=rollout.world_threads(waiting=waiting),
        max_conversations=conversations_of(rollout, benchmark, teacher),
        patience=0.0 if waiting else WAVE_PATIENCE,
    )


def conversations_of(rollout: RolloutConfig, benchmark: Benchmark, teacher: TeacherConfig | None) -> int:
    """Return the most conversations at the same time. `rollout.max_conversations` limits local models and worlds
    outside this process (a browser, a container, a site). A provider's batches take hours at any size, so worlds of
    this process fill them."""
    able = benchmark.capabilities
    if teacher is None or teacher.provider == "scripted":
        return rollout.max_conversations
    if teacher.max_conversations is not None:
        return teacher.max_conversations
    if able.waits or able.needs_network or not able.parallel:
        return rollout.max_conversations
    # twice the requests in flight: while one half waits for replies, the other half's worlds step
    wide = 2 * teacher.max_concurrent if teacher.mode == "concurrent" else WIDEST
    return max(rollout.max_conversations, wide)


def teacher_name(teacher: TeacherConfig, benchmark: Benchmark) -> str:
    """Return the model's name in run ids and records; the scripted expert's ends with its benchmark's version."""
    if teacher.provider == "scripted":
        return f"{teacher.model_name}-v{benchmark.version}"
    return teacher.model_name


def require_provider(teacher: TeacherConfig, *, asked: bool = True, keys: EndpointKeys = TEACHER_KEYS) -> None:
    """Raise UsageError if the teacher cannot be asked from here: no price, another provider's model, no key. Where it
    is not `asked`, no key is needed."""
    if teacher.provider != "scripted" and asked:
        provider_remote(teacher, _UNNAMED, keys=keys)
    elif teacher.provider != "scripted":
        teacher_rate(teacher, keys=keys)


def priced_teacher(
    teacher: TeacherConfig, cost: CostConfig, benchmark: Benchmark, waves: Waves, payer: Payer | None = None
) -> PricedModel:
    """The LLM; where it is a provider's, `payer` pays (None: one of the project's own). Raises UsageError where the
    benchmark has no expert, the model no price, or no key is set."""
    if teacher.provider != "scripted":
        return _priced_endpoint(teacher, cost, waves, payer or _UNNAMED, "llm", TEACHER_KEYS)
    if not isinstance(benchmark, Demonstrated):
        raise UsageError(f"teacher.provider=scripted: {benchmark.name} brings no expert; name a provider")
    backend = ScriptedBackend(guarded_expert(benchmark), name=teacher_name(teacher, benchmark), price=cost.llm_price)
    cache = PromptCache.of(cost.llm.input, cost)
    return PricedModel(waves.model(backend), cost.llm_price, "llm", teacher.max_tokens, cache)


def priced_api_policy(
    policy: PolicyConfig, teacher: TeacherConfig, cost: CostConfig, waves: Waves, payer: Payer | None = None
) -> PricedModel:
    """Return the small model behind an API. Its requests are sent like the teacher's; payment and errors are those of
    `priced_teacher`."""
    endpoint = policy.as_endpoint(teacher)
    return _priced_endpoint(endpoint, cost, waves, replace(payer or _UNNAMED, name="small"), SMALL_MODEL, POLICY_KEYS)


def priced_native_policy(
    policy: PolicyConfig, teacher: TeacherConfig, cost: CostConfig, waves: Waves, payer: Payer
) -> PricedModel:
    """Return the small model behind an API for a server: it continues another agent's conversation, with native tool
    calls. Raises as `priced_api_policy` does, and UsageError where the model takes no tools."""
    priced = priced_api_policy(policy.with_native_tools(), teacher, cost, waves, payer)
    return replace(priced, model=_OwnRules(priced.model), fit=None)


@dataclass(frozen=True)
class _OwnRules:
    """A chat model for conversations that bring their own rules."""

    model: ChatModel

    async def reply(self, request: Request) -> Reply:
        return await self.model.reply(replace(request, own_rules=True))


def _priced_endpoint(
    endpoint: TeacherConfig, cost: CostConfig, waves: Waves, payer: Payer, name: str, keys: EndpointKeys
) -> PricedModel:
    tempered = _Tempered(waves.model(provider_remote(endpoint, payer, keys=keys)), endpoint.temperature)
    return priced_endpoint(tempered, endpoint, cost, name, keys)


def priced_endpoint(
    model: ChatModel, endpoint: TeacherConfig, cost: CostConfig, name: str, keys: EndpointKeys
) -> PricedModel:
    """Return a provider's `model` as one of the pair, with its prompt cache and requests fitted into its context.
    Seconds per call are modelled by `cost.llm`. Raises UsageError where its price is not known."""
    rate = teacher_rate(endpoint, keys=keys)
    cache = PromptCache.of(rate.input, cost, rate.cached, rate.write_5m)
    context = endpoint.context or rate.context
    if context is None:  # no known limit: requests are sent whole
        return PricedModel(model, cost.llm_price, name, endpoint.max_tokens, cache)
    whole = FittedModel(model, context, endpoint.model_name)
    return PricedModel(whole, cost.llm_price, name, endpoint.max_tokens, cache, partial(fitted, context=context))


@dataclass(frozen=True)
class _Tempered:
    """A chat model that samples at its own temperature unless a request sets another above 0."""

    model: ChatModel
    temperature: float

    async def reply(self, request: Request) -> Reply:
        return await self.model.reply(replace(request, temperature=request.temperature or self.temperature))


def judge_of(teacher: TeacherConfig, waves: Waves, payer: Payer) -> Judge:
    """Return the teacher's model as a judge of single actions; its replies are kept in the folder of its journal.
    Raises UsageError where the teacher is scripted: its expert knows the answers."""
    teacher.require_judge()
    model = waves.model(provider_remote(teacher, payer))
    return Judge(model, teacher_rate(teacher).model, payer.folder / "judge.jsonl")


def provider_remote(
    teacher: TeacherConfig, payer: Payer, *, only: bool = False, keys: EndpointKeys = TEACHER_KEYS
) -> ProviderRemote:
    """Return the teacher's provider behind its journal in the payer's folder. only: never in a numbered one. Raises
    UsageError where the model has no price, is retired, does not take what it is asked, or no key is set."""
    rate = asked_rate(teacher, keys=keys)
    provider: Provider
    if teacher.engine in (VLLM, JOB):
        provider = served_teacher(teacher, rate, payer.root)
    else:
        provider = make_provider(
            teacher.provider, rate, base_url=teacher.base_url, api_key_env=teacher.api_key_env, key=keys.provider
        )
    scope = {"provider": teacher.provider, "model": rate.model}
    if teacher.base_url is not None:
        scope["endpoint"] = endpoint_identity(teacher.base_url)

    async def adopt(folder: Path) -> None:
        there = replace(payer, folder=folder, name="", joint=JointBudget())
        await provider_remote(teacher, there, only=True, keys=keys).collect_batches()

    session = ProjectSession(
        payer.root,
        payer=payer.folder,
        scope=scope,
        adopt=None if payer.anew or only else adopt,
        project_max_usd=teacher.project_max_usd,
        joint=payer.joint,
        numbered=not only,
    )
    return ProviderRemote(
        provider, rate, payer.folder / payer.name, dispatch_policy(teacher), scope=scope, session=session
    )


def dispatch_policy(teacher: TeacherConfig) -> DispatchPolicy:
    """Return the dispatch settings of the teacher's requests."""
    return DispatchPolicy(
        mode=teacher.mode,
        max_usd=teacher.max_usd,
        batch_size=teacher.batch_size,
        max_concurrent=teacher.max_concurrent,
        flush_seconds=teacher.flush_seconds,
        poll_seconds=teacher.poll_seconds,
        reconcile_after=teacher.reconcile_after,
        attempts=teacher.attempts,
        preflight=teacher.preflight,
        outage_seconds=teacher.outage_seconds,
        tail=teacher.tail,
        waiting_usd_per_hour=teacher.waiting_usd_per_hour,
    )


def told_tools(policy: PolicyConfig, benchmark: Benchmark) -> tuple[ToolSpec, ...]:
    """Return the tools in the prompts of the small policy and its verifier, in training and while acting."""
    return tools_of(benchmark) if policy.tools == "auto" else ()


def priced_policy(
    policy: PolicyConfig,
    weights: Path | None,
    cost: CostConfig,
    inference: InferenceConfig,
    rollout: RolloutConfig,
    waves: Waves,
    tools: Sequence[ToolSpec] = (),
    *,
    logprobs: bool = True,
) -> PricedModel:
    """Return the small policy with the weights exported in a folder (None: the base model) and these tools in its
    prompts. logprobs: False if those of its greedy replies are not read; a serving engine then leaves them out."""
    backend = _policy_backend(policy, weights, cost, inference, rollout, tools)
    memory = _memory(weights, policy, inference.max_new_tokens, cost.slm_price, tools)
    read, model = logprobs or policy.engine == LOCAL, waves.model(backend, memory)
    return PricedModel(model, cost.slm_price, "slm", inference.max_new_tokens, logprobs=read)


def _policy_backend(
    policy: PolicyConfig,
    weights: Path | None,
    cost: CostConfig,
    inference: InferenceConfig,
    rollout: RolloutConfig,
    tools: Sequence[ToolSpec],
) -> Backend[Request, Reply] | Remote[Request, Reply]:
    """Return the policy's backend: a model in this process, or a serving engine."""
    if policy.engine != LOCAL:
        from r2v.policy.serving import served_policy

        return served_policy(policy, weights, inference, cost.slm_price, tools)
    from r2v.llm.local.backend import LocalBackend
    from r2v.memory.on_device.wave_rows import chosen_rows, device_memory
    from r2v.policy.prompt_encoder import Encoder
    from r2v.policy.shared_base import acting_policy

    loaded = acting_policy(policy, weights)
    encode = Encoder.of(loaded.tokenizer, policy, inference.max_new_tokens, tools)
    return LocalBackend(
        loaded.model,
        loaded.tokenizer,
        encode,
        name="slm",
        price=cost.slm_price,
        max_batch=chosen_rows(rollout, policy, inference, device_memory(loaded.model.device)),
        actions=encode.actions,
    )


def verifier_scorer(
    policy: PolicyConfig,
    folder: Path,
    inference: InferenceConfig,
    rollout: RolloutConfig,
    waves: Waves,
    tools: Sequence[ToolSpec] = (),
) -> Scorer:
    """Return the trained verifier in a folder as an awaitable score."""
    backend = _verifier_backend(policy, folder, inference, rollout, tools)
    ask: Callable[[ScoreRequest], Coroutine[Any, Any, ScoreReply]] = waves.batched(
        backend, _memory(folder, policy, inference.max_new_tokens, tools), score_cache_key
    )
    return ask


def _verifier_backend(
    policy: PolicyConfig, folder: Path, inference: InferenceConfig, rollout: RolloutConfig, tools: Sequence[ToolSpec]
) -> Backend[ScoreRequest, ScoreReply] | Remote[ScoreRequest, ScoreReply]:
    """Return the verifier's backend: a model in this process, or a serving engine with the head in this process."""
    from r2v.policy.load import load_policy, load_tokenizer

    if policy.engine_verifier:
        from r2v.policy.serving import scoring_servers
        from r2v.verifier.serving import read_head, served_verifier

        servers, adapter = scoring_servers(policy, folder)
        encode = scoring_encoder(
            load_tokenizer(policy), policy, inference, tools
        )  # a verifier's folder holds no tokenizer
        return served_verifier(servers, adapter, head=read_head(folder), encode=encode)
    from r2v.memory.on_device.wave_rows import chosen_rows, device_memory
    from r2v.policy.shared_base import acting_policy
    from r2v.verifier.model import VerifierBackend, load

    # whole weights replace a base of their own; adapters are put on the shared one
    loaded = acting_policy(policy, folder) if (folder / ADAPTERS).exists() else load_policy(policy)
    model = load(folder, loaded.model)
    rows = chosen_rows(rollout, policy, inference, device_memory(loaded.model.device), "score")
    return VerifierBackend(model, scoring_encoder(loaded.tokenizer, policy, inference, tools), rows)


def scoring_encoder(
    tokenizer: Any, policy: PolicyConfig, inference: InferenceConfig, tools: Sequence[ToolSpec] = ()
) -> Callable[[Sequence[Message], str], list[int]]:
    """Return (context, action) -> ids of the verifier's input: the context as the policy reads it, then the action."""
    from r2v.policy.prompt_encoder import Encoder

    encoder = Encoder.of(tokenizer, policy, inference.max_new_tokens, tools)
    return lambda messages, action: [*encoder(messages), *encoder.action_ids(action)]


def estimated(message: Message) -> int:
    """Return the estimated number of tokens of a message."""
    return -(-len(message.text.encode(errors="surrogatepass")) // BYTES) + _AROUND


def fitted(request: Request, context: int) -> Request:
    """Return the request shortened to a context of so many tokens, reply included. It is returned unchanged where the
    goal alone is too long, which the provider refuses, and for another agent's conversation."""
    if request.own_rules:
        return request
    rules = system_prompt((), request.tools)
    limit = context - request.max_tokens - len(rules.encode()) // BYTES - _AROUND
    elision = HalfElision(request.messages, estimated)
    if elision.fits(limit):
        return request
    cut = elision.cut(limit)
    form: Sequence[Message] | None = elision.form(cut)
    if form and elision.newest_size > cut.room:
        form = _newest_cut(form, cut.room - estimated(Message(role="tool", content=f"\n{ELIDED}\n")))
    return request if form is None else replace(request, messages=tuple(form))


def _newest_cut(form: Sequence[Message], keep: int) -> list[Message] | None:
    """Return the conversation with its newest observation cut to so many tokens; None where none would be left."""
    text = form[-1].text
    characters = keep * BYTES * len(text) // max(1, len(text.encode(errors="surrogatepass")))
    if form[-1].role != "tool" or characters < 2:
        return None
    return [*form[:-1], replace(form[-1], content=without_middle(text, characters))]


@dataclass(frozen=True)
class FittedModel:
    """A chat model whose requests are fitted into its context, in tokens, by the rule of the small policy's prompts.

    A provider refuses a prompt that is too long, at ten thousand tokens a page from the thirteenth step on. So old
    observations are left out, half of the context at once (`r2v.policy.half_elision`), and the middle of a page that is
    too long by itself. The provider's tokenizer is not at hand: tokens are estimated at BYTES bytes each, so that a
    request that fits by the estimate is accepted. The result depends on the conversation, the tools, the context and
    the length of the reply alone, so it can be computed again from a record.
    """

    model: ChatModel
    context: int
    name: str

    async def reply(self, request: Request) -> Reply:
        """Return the reply to the request, shortened to the context."""
        shown = fitted(request, self.context)
        if shown is not request:
            text = f"  conversations elided to fit the context: model={self.name} teacher.context={self.context}"
            say_once(logging.INFO, text)
        return await self.model.reply(shown)
