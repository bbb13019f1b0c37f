"""Judge of fuzzy answers: an LLM behind the same provider code as the teacher.

Prompts and parsing are the official evaluators' own; `env.options.judge` names the model as PROVIDER:MODEL or with the
fields of `teacher`. Replies and bills belong to the project: no process pays twice for the same question, and the
project's cap applies. An audit makes no calls (`by_record`): it reads the project's journals, needs no key and writes
nothing.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from r2v.config.models import TeacherConfig, endpoint_identity
from r2v.envs.base import Unjudged
from r2v.errors import UsageError
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy
from r2v.llm.providers.factory import make_provider, make_reader
from r2v.llm.providers.prices import Rate
from r2v.llm.providers.project_session import ProjectSession
from r2v.llm.providers.provider_requests import make_request, reply_key
from r2v.llm.providers.remote import ProviderRemote
from r2v.llm.providers.spending.project import ProjectLedger, Replies
from r2v.llm.providers.teacher import asked_rate
from r2v.llm.providers.verdicts import reply_of
from r2v.llm.types import Request
from r2v.llm.waves import Waves
from r2v.storage.paths import REPLIES
from r2v.wire.message import Message

_TOKENS = 768
"""Reply limit of the official call, in tokens."""


class AnswerJudge:
    """LLM judge, called one question at a time and safe for threads. Raises UsageError for settings without a model."""

    def __init__(self, judge: str | Mapping[str, Any], root: Path = Path()) -> None:
        settings = _named(judge) if isinstance(judge, str) else judge
        if not isinstance(settings, Mapping) or not {"provider", "model_name"} <= set(settings):
            raise UsageError(
                f"env.options.judge={judge!r:.60}: name a model, as in env.options.judge=openai:gpt-6.1-terra, or "
                "by fields of teacher: {provider: ..., model_name: ...}"
            )
        try:
            self.teacher = TeacherConfig(**settings)
        except TypeError as error:
            raise UsageError(f"env.options.judge: {error}; its fields are those of teacher") from error
        if self.teacher.provider == "scripted":
            raise UsageError(
                "env.options.judge: a judge needs an LLM; name openai, anthropic or a provider of your own"
            )
        self.by_record = False
        """True if only the project's journaled replies are used."""
        self.name = f"{self.teacher.provider}:{self.teacher.model_name}"
        self._root = root
        self._lock = threading.Lock()
        self._replies: dict[str, str] = {}

    def replies(self, questions: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, str]:
        """Return the replies to questions (chat messages) by the question's JSON. Raises EnvironmentFault if the
        provider fails, UsageError without a key and, by record, Unjudged for a reply that is not in the project."""
        with self._lock:
            for question in questions:
                if (name := json.dumps(question)) not in self._replies:
                    request = _request(question)
                    self._replies[name] = self._recorded(request) if self.by_record else self._ask(request)
            return {json.dumps(question): self._replies[json.dumps(question)] for question in questions}

    def _recorded(self, request: Request) -> str:
        rate = asked_rate(self.teacher)
        replies = Replies(ProjectLedger(self._root), self._scope(rate), run="")
        replies.look()
        body = make_reader(self.teacher.provider, rate).request_body(request)
        verdict = replies.answer(reply_key(make_request("", request, body, reuse=True).identity))
        if verdict is None:
            raise Unjudged(
                f"{self.name} judged this answer, and its reply is not in this project; an audit asks no model: check "
                f"it in the project that made it, or in a copy with its {REPLIES}"
            )
        return reply_of(request, [verdict], rate).text

    def _ask(self, request: Request) -> str:
        waves = Waves(workers=1, max_conversations=1)
        model = waves.model(self._remote())

        async def reply() -> str:
            return (await model.reply(request)).text

        return waves.run([reply])[0]

    def _remote(self) -> ProviderRemote:
        """Return the judge's provider, whose replies are kept in a journal below outputs/.replies and never paid
        twice."""
        teacher, rate = self.teacher, asked_rate(self.teacher)
        provider = make_provider(teacher.provider, rate, base_url=teacher.base_url, api_key_env=teacher.api_key_env)
        scope = self._scope(rate)
        folder = self._root / REPLIES / "webarena-judge"
        session = ProjectSession(
            self._root, payer=folder, scope=scope, adopt=_no_batches, project_max_usd=teacher.project_max_usd
        )
        policy = DispatchPolicy(
            mode="concurrent", max_usd=teacher.max_usd, attempts=teacher.attempts, preflight=False, reuse=True
        )
        return ProviderRemote(provider, rate, folder, policy, scope=scope, session=session)

    def _scope(self, rate: Rate) -> dict[str, str]:
        scope = {"provider": self.teacher.provider, "model": rate.model}
        if self.teacher.base_url is not None:
            scope["endpoint"] = endpoint_identity(self.teacher.base_url)
        return scope


def _request(question: Sequence[Mapping[str, Any]]) -> Request:
    messages = tuple(Message(role=turn["role"], content=turn["content"]) for turn in question)
    return Request(messages=messages, key=("webarena", "judge"), max_tokens=_TOKENS)


def _named(judge: str) -> dict[str, str]:
    provider, _, model = judge.partition(":")
    return {"provider": provider, "model_name": model} if provider and model else {}


async def _no_batches(folder: Path) -> None:
    """Adopt nothing: a judge calls directly, so a dead process leaves no batches."""
    await asyncio.sleep(0)
