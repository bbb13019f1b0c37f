"""Teacher: the configured LLM behind R2V's journal, which pays each reply once and enforces the cap.

teacher = Teacher(load_config(overrides=["teacher.provider=openai", "teacher.model_name=gpt-6.1-terra",
                                         "teacher.max_usd=5", "teacher.mode=concurrent"]))
turn = await teacher.reply(messages, tools)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from r2v.config import Config
from r2v.errors import UsageError
from r2v.library.conversation import KEY_NAME, chat_request
from r2v.llm.types import Request
from r2v.llm.waves import Waves
from r2v.wire.message import Message, ToolSpec


class Teacher:
    """LLM of a configuration. root: the folder of its journal.

    Raises UsageError for the scripted expert, which answers only its own benchmark, for a billed model without a cap,
    and for a model without a price or a key.
    """

    def __init__(self, config: Config, *, root: str | Path = ".") -> None:
        from r2v.pipeline.ready import is_uncapped
        from r2v.rollout.model_factory import Purse, provider_remote
        from r2v.storage.paths import REPLIES

        teacher = config.teacher.with_native_tools()
        if teacher.provider == "scripted":
            raise UsageError("teacher.provider=scripted: the expert answers only its own benchmark; name a provider")
        if is_uncapped(teacher, [teacher], Path(root)):
            raise UsageError(f"teacher.max_usd is not set, and {teacher.model_name} is billed; add a cap, such as 20")
        purse = Purse(folder=Path(root) / REPLIES / KEY_NAME, root=Path(root))
        self._teacher = teacher
        self._model = Waves(workers=1).model(provider_remote(teacher, purse))

    async def reply(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        tools: Sequence[ToolSpec | Mapping[str, Any]] = (),
        *,
        draw: int = 0,
    ) -> Message:
        """Return the LLM's turn. The same conversation under the same `draw` is sent and paid only once.

        Raises UsageError for an invalid conversation, and EnvironmentFault if the cap is reached or the LLM gives no
        reply.
        """
        request = chat_request(messages, tools)
        reply = await self._model.reply(
            Request(
                messages=request.parsed.messages,
                key=(draw, request.conversation),
                tools=request.parsed.functions,
                temperature=self._teacher.temperature,
                max_tokens=self._teacher.max_tokens,
                own_rules=True,
            )
        )
        return reply.samples[0].message or Message(role="assistant", content=reply.text)
