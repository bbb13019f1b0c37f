"""Endpoints: models behind the server, with address, key and prices.

llm = endpoint(config.teacher)
llm.url("/v1/messages", "beta=true"), llm.key_headers, llm.rate("claude-haiku-5-5")
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from r2v.config.models import TeacherConfig
from r2v.errors import UsageError
from r2v.llm.providers.keys import announce, base_url_of_shell, require_key
from r2v.llm.providers.prices import Rate
from r2v.llm.providers.registry.table import own_keys
from r2v.llm.providers.teacher import TEACHER_KEYS, EndpointKeys, teacher_rate
from r2v.wire.anthropic import MESSAGES_PATH
from r2v.wire.chat import CHAT_PATH
from r2v.wire.responses import RESPONSES_PATH
from r2v.wire.stream_facts import WireName

PATHS: dict[WireName, str] = {"chat": CHAT_PATH, "responses": RESPONSES_PATH, "messages": MESSAGES_PATH}
COUNT_PATH = f"{MESSAGES_PATH}/count_tokens"
_WIRES: dict[str, tuple[WireName, ...]] = {"openai": ("chat", "responses"), "anthropic": ("messages",)}
"""Formats of a provider's own host. Another host may speak all three."""
_DATE = re.compile(r"[-@](20\d{6}|20\d\d-\d\d-\d\d)$")


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A model behind the server."""

    provider: str
    model: str
    root: str
    """Base URL with its version, such as https://api.openai.com/v1."""
    wires: tuple[WireName, ...]
    key: str = field(repr=False)
    teacher: TeacherConfig
    settings: EndpointKeys

    def url(self, path: str, query: str = "") -> str:
        """Return the URL of a path of this server at the endpoint, with the client's query string."""
        return self.root + path.removeprefix("/v1") + (f"?{query}" if query else "")

    @property
    def key_headers(self) -> Mapping[str, str]:
        """Headers that hold the key."""
        return {"x-api-key": self.key} if self.provider == "anthropic" else {"authorization": f"Bearer {self.key}"}

    def rate(self, *names: str) -> Rate | None:
        """Return the price of the first of these model names that has one; None if none has."""
        return next((rate for name in names if name and (rate := _rate(self, name)) is not None), None)


@lru_cache(maxsize=1000)
def _rate(endpoint: Endpoint, name: str) -> Rate | None:
    for spelling in _spellings(name):
        teacher = endpoint.teacher
        if spelling != teacher.model_name:
            teacher = replace(teacher, model_name=spelling, engine=None)
            if teacher.base_url is None:  # prices in the configuration are those of its own model
                teacher = replace(teacher, usd_in=None, usd_out=None, model={})
        try:  # a spelling without a price is no error: the next one may have it
            return teacher_rate(teacher, keys=endpoint.settings)
        except UsageError:
            continue
    return None


def _spellings(name: str) -> Iterator[str]:
    """Yield a model's name as given, without its vendor, and both without a date: replies name dated snapshots."""
    for spelling in dict.fromkeys((name, name.rpartition("/")[2])):
        yield spelling
        if (undated := _DATE.sub("", spelling)) != spelling:
            yield undated


def endpoint(teacher: TeacherConfig, settings: EndpointKeys = TEACHER_KEYS) -> Endpoint:
    """Return the endpoint of a configured model. Raises UsageError if it has no provider, its key is not set, or it has
    no price."""
    if teacher.provider not in _WIRES:
        raise UsageError(
            f"{settings.provider}={teacher.provider}: the server forwards to {', '.join(_WIRES)}; name a model, "
            "such as --llm openai:gpt-6.1-terra"
        )
    teacher_rate(teacher, keys=settings)
    own = own_keys()[teacher.provider]
    variable = teacher.api_key_env or own.variable
    key = require_key(variable, teacher.base_url)
    base_url = teacher.base_url or base_url_of_shell(teacher.provider)  # as the SDKs do
    root = (base_url or f"https://{own.host}").rstrip("/")
    if base_url is None or (teacher.provider == "anthropic" and not root.endswith("/v1")):
        root += "/v1"
    announce(variable, root, teacher.provider)
    return Endpoint(
        provider=teacher.provider,
        model=teacher.model_name,
        root=root,
        wires=_WIRES[teacher.provider] if base_url is None else tuple(PATHS),
        key=key,
        teacher=teacher,
        settings=settings,
    )
