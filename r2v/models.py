"""The models of a configuration, loaded and priced: the teacher's side and the small policy's side.

Heavy libraries are imported when a local model is asked for, not before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from r2v.actors import Scorer, Side
from r2v.artifact import content_files
from r2v.config import CostConfig, InferenceConfig, PolicyConfig, RolloutConfig, TeacherConfig, identity
from r2v.envs.base import Benchmark, Demonstrated
from r2v.errors import UsageError
from r2v.llm.scripted import ScriptedBackend
from r2v.llm.types import Message, ScoreRequest
from r2v.llm.waves import Memo, Waves

_REMEMBERED: dict[str, Memo] = {}


def _memory(weights: Path | None, *sections: Any) -> Memo:
    """The answers this process has already had of a model: stages that play the same weights share them."""
    content = None if weights is None else content_files(weights)
    return _REMEMBERED.setdefault(json.dumps([content, [identity(section) for section in sections]]), {})


def engine(rollout: RolloutConfig) -> Waves:
    """A wave engine of the configured width."""
    return Waves(workers=rollout.workers, max_conversations=rollout.max_conversations)


def teacher_name(teacher: TeacherConfig, benchmark: Benchmark) -> str:
    """The model's name in run ids and records; the scripted expert is named after its benchmark's version."""
    if teacher.provider == "scripted":
        return f"{teacher.model_name}-v{benchmark.version}"
    return teacher.model_name


def require_provider(teacher: TeacherConfig) -> None:
    """Raises UsageError where the teacher's provider is not there yet."""
    if teacher.provider != "scripted":
        raise UsageError(f"teacher.provider={teacher.provider}: provider backends are not in this version; allowed: "
                         "scripted")


def teacher_side(teacher: TeacherConfig, cost: CostConfig, benchmark: Benchmark, waves: Waves) -> Side:
    """The LLM. Raises UsageError where the benchmark has no expert, or the provider is not there yet."""
    require_provider(teacher)
    if not isinstance(benchmark, Demonstrated):
        raise UsageError(f"teacher.provider=scripted: {benchmark.name} brings no expert; name a provider")
    backend = ScriptedBackend(benchmark.expert, name=teacher_name(teacher, benchmark), price=cost.llm)
    return Side(waves.model(backend), cost.llm, "llm", teacher.max_tokens)


def policy_side(policy: PolicyConfig, weights: Path | None, cost: CostConfig, inference: InferenceConfig,
                rollout: RolloutConfig, waves: Waves) -> Side:
    """The small policy with the weights exported in a folder (None: the base model as it is)."""
    from r2v.llm.local import LocalBackend
    from r2v.policy.load import load_policy
    from r2v.policy.prompts import Encoder

    loaded = load_policy(policy, weights)
    encode = Encoder(loaded.tokenizer, max_seq_len=policy.max_seq_len, reserve=inference.max_new_tokens)
    backend = LocalBackend(loaded.model, loaded.tokenizer, encode, name="slm", price=cost.slm,
                           max_batch=rollout.batch_size)
    memory = _memory(weights, policy, inference.max_new_tokens, cost.slm)
    return Side(waves.model(backend, memory), cost.slm, "slm", inference.max_new_tokens)


def verifier_scorer(policy: PolicyConfig, folder: Path, inference: InferenceConfig, rollout: RolloutConfig,
                    waves: Waves) -> Scorer:
    """The trained verifier in a folder, as an awaitable score."""
    from r2v.policy.load import load_policy
    from r2v.verifier.model import VerifierBackend, load

    loaded = load_policy(policy)
    model = load(folder, loaded.model)
    backend = VerifierBackend(model, scoring_encoder(loaded.tokenizer, policy, inference), rollout.batch_size)
    ask: Callable[[ScoreRequest], Coroutine[Any, Any, float]] = waves.port(
        backend, _memory(folder, policy, inference.max_new_tokens), _itself)
    return ask


def scoring_encoder(tokenizer: Any, policy: PolicyConfig,
                    inference: InferenceConfig) -> Callable[[Sequence[Message], str], list[int]]:
    """(context, action) -> the ids a verifier reads: the context as the policy sees it, then the action."""
    from r2v.policy.prompts import Encoder

    encoder = Encoder(tokenizer, max_seq_len=policy.max_seq_len, reserve=inference.max_new_tokens)
    return lambda messages, action: [*encoder(messages), *encoder.action_ids(action)]


def _itself(request: ScoreRequest) -> ScoreRequest:
    return request
