"""Redaction of keys and passwords in data that leaves this machine.

    redacted({"url": "https://me:pw@host"})     # {"url": "https://[redacted]@host"}
    secret_in(b"... sk-ant-...")                # "text of the form of a key (sk-...)"

A secret is the value of an environment variable with a name such as `*_TOKEN`, text of the form of a provider's key,
credentials in a URL, or a text under a name such as `password`.
"""

from __future__ import annotations

import os
import re
from typing import Any

SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE|PRIVATE|CERT", re.IGNORECASE)
"""Names of environment variables that may hold a secret."""
SHADE = "[redacted]"
_SHORTEST = 8
"""Characters of a secret; a shorter value, such as a number, occurs in many texts by chance."""
_FIELD = re.compile(
    r"(.*[._-])?(key|token|secret|password|passwd|passphrase|credentials?|cookies?|authorization)", re.IGNORECASE
)
_FORMS = {
    b"sk-": re.compile(rb"\bsk-[A-Za-z0-9_-]{32,}"),
    b"hf_": re.compile(rb"\bhf_[A-Za-z0-9]{34}\b"),
    b"gh": re.compile(rb"\b(gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{50,})"),
    b"AKIA": re.compile(rb"\bAKIA[0-9A-Z]{16}\b"),
    b"r2v-": re.compile(rb"\br2v-[A-Za-z0-9_-]{43}"),
}
"""Prefix -> form of a key of a provider, the hub, GitHub, AWS or R2V's server."""
_IN_URL = re.compile(r"(?<=://)[^/\s@]+(?=@)")


def secrets_here() -> dict[str, str]:
    """Return variable -> secret of the environment. Paths of existing files are no secrets."""
    return {
        name: value
        for name, value in os.environ.items()
        if SECRET_NAME.search(name) and len(value) >= _SHORTEST and not os.path.lexists(value)
    }


def redacted(value: Any) -> Any:
    """Return plain data with every secret in its texts replaced by SHADE."""
    if isinstance(value, dict):
        return {
            name: SHADE if isinstance(item, str) and item and _FIELD.fullmatch(str(name)) else redacted(item)
            for name, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [redacted(item) for item in value]
    if not isinstance(value, str):
        return value
    for secret in secrets_here().values():
        value = value.replace(secret, SHADE)
    for form in _FORMS.values():
        value = form.sub(SHADE.encode(), value.encode(errors="surrogateescape")).decode(errors="surrogateescape")
    return _IN_URL.sub(SHADE, value)


def secret_in(data: bytes) -> str | None:
    """Return the kind of a secret in the data, never the secret itself; None without one."""
    for name, secret in secrets_here().items():
        if secret.encode(errors="surrogateescape") in data:
            return f"the value of the environment variable {name}"
    prefixes = (prefix for prefix, form in _FORMS.items() if prefix in data and form.search(data))
    return next((f"text of the form of a key ({prefix.decode()}...)" for prefix in prefixes), None)
