"""API keys: the environment variables that may be sent as a key, and the warning before one goes to another host.

A configuration names the variable of a key and the host it is sent to, so a stranger's file could send any secret of
the environment anywhere. A variable is read only if the model registry lists it, its name ends in _API_KEY, or the
command line allows it. Before a key goes to a host that is not its provider's own, one log line names both. Clients
also read proxies and certificates of the environment; errors name the variable that cannot be used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar
from urllib.parse import urlsplit

from r2v.config.engines import ENGINE_KEY_ENV as ENGINE_KEY_ENV
from r2v.config.engines import require_url
from r2v.environment import is_loopback
from r2v.errors import EnvironmentFault, UsageError
from r2v.llm.providers.registry.table import OwnKey, own_keys
from r2v.log import logger

OPTION = "--allow-env"
"""The option that lets further variables be sent as keys."""
_SUFFIX = "_API_KEY"
_REHEARSAL = "a rehearsal by `r2v providers emulate`"
Client = TypeVar("Client")
_allowed: tuple[str, ...] = ()
_announced: set[tuple[str, str]] = set()


def allow(variables: Collection[str]) -> None:
    """Let this process send these variables as keys, in addition to the default ones; replaces an earlier call."""
    global _allowed
    _allowed = tuple(dict.fromkeys(variables))


@contextmanager
def also_allowed(variables: Collection[str]) -> Iterator[None]:
    """Allow these variables too within the block."""
    before = _allowed
    allow([*before, *variables])
    try:
        yield
    finally:
        allow(before)


def allowed() -> tuple[str, ...]:
    """Return the variables that the command line allows."""
    return _allowed


def allowed_words(variables: Collection[str] | None = None) -> list[str]:
    """Return the options that allow another R2V process these variables (None: those of this process)."""
    return [word for name in (_allowed if variables is None else variables) for word in (OPTION, name)]


def require_sendable(variable: str | None) -> None:
    """Raise UsageError for a variable that may not be sent as a key; None means the provider's own, which may."""
    if variable is None or variable.endswith(_SUFFIX) or variable in (*_known(), *_allowed):
        return
    raise UsageError(
        f"api_key_env={variable}: not known as the key of a provider, and nothing was sent; allowed are "
        f"{', '.join(_known())} and names that end in {_SUFFIX}; if it is your key for that endpoint, add {OPTION} "
        f"{variable} to the command"
    )


def read_key(variable: str) -> str:
    """Return the key in a variable; empty if it is not set. Raise UsageError as `require_sendable` does."""
    require_sendable(variable)
    return os.environ.get(variable, "")


def require_key(variable: str, base_url: str | None) -> str:
    """Return the key in a variable. Raise UsageError if it is not set, and as `require_sendable` does."""
    if key := read_key(variable):
        return key
    anyhow = " (any text, if the endpoint asks for no key)" if base_url else ""
    raise UsageError(f"{variable} is not set in the environment{anyhow}; {_REHEARSAL} needs none and costs nothing")


def base_url_of_shell(provider: str) -> str | None:
    """Return the endpoint that the SDK of a provider reads from the shell; None without one. Raise UsageError where it
    is no URL."""
    name = f"{provider.upper()}_BASE_URL"
    if url := os.environ.get(name):
        require_url(name, url, key_variable=f"{provider.upper()}_API_KEY")
    return url or None


_PROXIES = ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


def made_client(make: Callable[[bool], Client], provider: str, base_url: str | None) -> Client:
    """Return a client of a provider's SDK from `make(trust_env)`. It reads proxies and certificates from the shell,
    except for plain HTTP on this machine's loopback, which no proxy reaches. Raise EnvironmentFault that names a
    variable it cannot use, without a proxy's address, which may hold a password."""
    url = base_url or base_url_of_shell(provider) or ""
    try:
        return make(url.startswith("https:") or not is_loopback(url))  # over TLS the certificates are needed
    except ImportError as error:  # httpx raises it for a SOCKS proxy without socksio
        named = next((name for name, value in _set(_PROXIES) if value.startswith("socks")), None)
        if named is None:
            raise EnvironmentFault(f"the provider's client cannot be made: {error}") from None
        raise EnvironmentFault(
            f"{named} names a SOCKS proxy, which needs the package socksio: pip install socksio, or unset the variable"
        ) from None
    except OSError as error:  # the SSL context could not load its certificates
        named = ", ".join(f"{name}={value}" for name, value in _set(_CERTIFICATES)) or "the certificates"
        raise EnvironmentFault(f"{named}: cannot be read ({error}); name a file that is there, or unset it") from None


def _set(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for name in (spelled for upper in names for spelled in (upper, upper.lower())):
        if value := os.environ.get(name):
            yield name, value


def announce(variable: str, url: str, provider: str | None = None) -> None:
    """Warn that a key is about to be sent to `url`, once per process for each key and host, unless that is its
    provider's own host. provider: the one whose API is spoken; None: R2V's own engine."""
    parts, own = urlsplit(url), _own_key(variable, provider)
    if own is not None and _is_own(parts.hostname or "", own.host):
        return
    host = parts.netloc.rpartition("@")[2]
    note = "" if own is None else f" note=not {own.name}'s own host {own.host}"
    _log_once(variable, host, f"{parts.scheme}://{host}{parts.path.rstrip('/')}{_headers(provider)}{note}")


def announce_handed(variable: str, spec: str, base_url: str | None) -> None:
    """Warn that a provider class from outside R2V, which may send a key anywhere, is given the variable's name."""
    host = base_url or "a host of its choice"
    _log_once(variable, f"{spec} {host}", f"{host} teacher.provider={spec}")


def _headers(provider: str | None) -> str:
    """Return the log field of the custom headers that a provider's SDK sends with the key; empty if none are set."""
    variable = "" if provider is None else f"{provider.upper()}_CUSTOM_HEADERS"
    return f" headers={variable}" if os.environ.get(variable) else ""


def _log_once(variable: str, host: str, target: str) -> None:
    if (variable, host) not in _announced:
        _announced.add((variable, host))
        logger.warning("sending a key: variable=%s to=%s", variable, target)


def _known() -> list[str]:
    return [*(key.variable for key in own_keys().values()), ENGINE_KEY_ENV]


def _own_key(variable: str, provider: str | None) -> OwnKey | None:
    """Return the key's owner: the provider that the variable belongs to by name, else the provider that is called."""
    named = next((key for key in own_keys().values() if key.variable == variable), None)
    return named or own_keys().get(provider or "")


def _is_own(host: str, own: str) -> bool:
    """True for the host itself and its subdomains, such as a region's."""
    return host == own or host.endswith(f".{own}")
