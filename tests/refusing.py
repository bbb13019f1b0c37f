"""An LLM behind a provider that refuses some questions, each by itself, as a context that is too long is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType

from r2v.llm.providers.remote import Unanswered
from r2v.llm.scripted import ScriptedBackend
from r2v.llm.types import Reply, Request
from r2v.llm.waves import Waves
from r2v.rollout.actors import PricedModel
from tests.chains import LLM_PRICE


class Refusing:
    """A `Remote` that answers as `speak` does, and leaves some requests without an answer, for good or (`final`) not
    yet."""

    max_batch, max_age = 64, 0.0

    def __init__(
        self, speak: Callable[[Request], str], refuses: Callable[[Request], bool], *, final: bool = True
    ) -> None:
        self._model, self._refuses = ScriptedBackend(speak, name="llm", price=LLM_PRICE), refuses
        self._error = Unanswered("400 the context is too long", final=final)

    async def __aenter__(self) -> object:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def send(self, requests: Sequence[Request]) -> list[asyncio.Future[Reply]]:
        answers = []
        for request in requests:
            answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
            if self._refuses(request):
                answer.set_exception(self._error)
            else:
                [reply] = self._model.answer([request])
                answer.set_result(reply)
            answers.append(answer)
        return answers


def refusing_side(waves: Waves, remote: Refusing) -> PricedModel:
    return PricedModel(waves.model(remote), LLM_PRICE, "llm", 24)
