"""Provider factory: the class that `teacher.provider` names, one of R2V's own or one by dotted path.

    make_provider("openai", rate, base_url="http://localhost:8000/v1")
    make_provider("mylab.provider:Gateway", rate)

A class by dotted path is called as R2V's own are: `Class(rate, base_url=..., api_key_env=...)`. It implements the three
methods of `r2v.llm.providers.provider.Provider`; docs/extending/provider.md shows a complete one.
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
"""Classes by short name of `teacher.provider`; any other name is a dotted path `package.module:Class`."""


def make_provider(
    spec: str,
    rate: Rate,
    *,
    base_url: str | None = None,
    api_key_env: str | None = None,
    key: str = "teacher.provider",
) -> Provider:
    """Return the provider of a short name or dotted path for one model; `key`: the setting that names it, for errors.
    Raise UsageError if it cannot be loaded, is no provider, its key is not set, or the variable may not be sent."""
    provider_class = load_class(key, PROVIDER_CLASSES.get(spec, spec), PROVIDER_CLASSES, Provider)
    # a class from outside reads the variable itself, so its name is checked and logged before it is handed over
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
    """Return one of R2V's own providers without a key, which rebuilds the bodies of journaled requests and never calls.
    Raise UsageError for any other name: reading a record must not run code that the record names."""
    if spec not in PROVIDER_CLASSES:
        raise UsageError(f"{spec:.60}: not one of R2V's own providers ({', '.join(PROVIDER_CLASSES)})")
    reader: Provider = load_class("provider", PROVIDER_CLASSES[spec], PROVIDER_CLASSES, Provider)(rate, keyless=True)
    return reader
