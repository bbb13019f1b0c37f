"""Judging: the model that decides whether a fuzzy answer is right, behind the same door as every other LLM.

The official prompts and the reading of their replies are the evaluators' own; who replies is named by
`env.options.judge`, as PROVIDER:MODEL or a section like `teacher`. Its replies and bills are the project's: an answer
that was judged once, by whichever process, is not paid for again, and a cap on the project holds for it. An audit
asks nobody (`by_record`): it reads the project's journals, needs no key and writes none.
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
from r2v.llm.providers.membership import Membership
from r2v.llm.providers.prices import Rate
from r2v.llm.providers.provider_requests import make_request, reply_key
from r2v.llm.providers.remote import ProviderRemote
from r2v.llm.providers.replies import reply_of
from r2v.llm.providers.spending.project import ProjectLedger, Replies
from r2v.llm.providers.teacher import asked_rate
from r2v.llm.types import Request
from r2v.llm.waves import Waves
from r2v.storage.paths import REPLIES
from r2v.wire.message import Message

_TOKENS = 768
"""As the official call asks for."""


class AnswerJudge:
    """Asks one question at a time, from whichever thread. Raises UsageError for settings that name no model."""

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
        """Whether only the project's journaled replies are used."""
        self.name = f"{self.teacher.provider}:{self.teacher.model_name}"
        self._root = root
        self._lock = threading.Lock()
        self._known: dict[str, str] = {}

    def replies(self, questions: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, str]:
        """The reply to each question (chat messages), by its JSON. Raises EnvironmentFault where none can be had,
        UsageError where no key is set; by record, Unjudged for one that the project has not."""
        with self._lock:
            for question in questions:
                if (name := json.dumps(question)) not in self._known:
                    request = _request(question)
                    self._known[name] = self._recorded(request) if self.by_record else self._ask(request)
            return {json.dumps(question): self._known[json.dumps(question)] for question in questions}

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
        """The provider behind a journal of the project's."""
        teacher, rate = self.teacher, asked_rate(self.teacher)
        provider = make_provider(teacher.provider, rate, base_url=teacher.base_url, api_key_env=teacher.api_key_env)
        scope = self._scope(rate)
        folder = self._root / REPLIES / "webarena-judge"
        membership = Membership(
            self._root, purse=folder, scope=scope, adopt=_no_batches, project_max_usd=teacher.project_max_usd
        )
        policy = DispatchPolicy(
            mode="concurrent", max_usd=teacher.max_usd, attempts=teacher.attempts, preflight=False, reuse=True
        )
        return ProviderRemote(provider, rate, folder, policy, scope=scope, membership=membership)

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
    """A judge calls directly: no batch of a dead process has to be brought home."""
    await asyncio.sleep(0)
