"""The provider factory: the provider that `teacher.provider` names, ours or one by dotted path.

    make_provider("openai", rate, base_url="http://localhost:8000/v1")
    make_provider("mylab.provider:Gateway", rate)

A class by dotted path is called as ours are: `Class(rate, base_url=..., api_key_env=...)`. It implements
`r2v.llm.providers.provider.Provider`, three methods; docs/extending/provider.md has a whole one.
"""

from __future__ import annotations

from r2v.errors import UsageError
from r2v.extensions import load_class
from r2v.llm.providers.keys import announce_handed, require_sendable
from r2v.llm.providers.prices import Rate
from r2v.llm.providers.provider import Provider

PROVIDER_CLASSES = {
    "openai": "r2v.llm.providers.openai:OpenAI",
    "anthropic": "r2v.llm.providers.anthropic:Anthropic",
}
"""Names that `teacher.provider` may use. Anything else is a dotted path `package.module:Class`."""


def make_provider(
    spec: str,
    rate: Rate,
    *,
    base_url: str | None = None,
    api_key_env: str | None = None,
    key: str = "teacher.provider",
) -> Provider:
    """The provider of this name or dotted path, which the setting `key` names, for one model. Raises UsageError where
    it cannot be loaded, is no provider, its key is not set, or the variable may not be sent as one."""
    provider_class = load_class(key, PROVIDER_CLASSES.get(spec, spec), PROVIDER_CLASSES, Provider)
    if api_key_env is not None and spec not in PROVIDER_CLASSES:
        require_sendable(api_key_env)
        announce_handed(api_key_env, spec, base_url)
    try:
        provider: Provider = provider_class(rate, base_url=base_url, api_key_env=api_key_env)
    except UsageError as error:
        raise UsageError(f"{key}={spec}: {error}") from None
    except TypeError as error:
        raise UsageError(
            f"{key}={spec}: {error}; it is called as Class(rate, base_url=..., api_key_env=...)"
        ) from error
    if not hasattr(provider, "name"):
        raise UsageError(f"{key}={spec}: is no Provider: it lacks name")
    return provider


def make_reader(spec: str, rate: Rate) -> Provider:
    """A provider of R2V's own that has no key: it says under which body a request was journaled, and calls nobody.
    Raises UsageError for any other, whose code nobody has agreed to run."""
    if spec not in PROVIDER_CLASSES:
        raise UsageError(f"{spec:.60}: not one of R2V's own providers ({', '.join(PROVIDER_CLASSES)})")
    reader: Provider = load_class("provider", PROVIDER_CLASSES[spec], PROVIDER_CLASSES, Provider)(rate, keyless=True)
    return reader
