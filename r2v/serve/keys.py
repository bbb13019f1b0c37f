"""Keys of the server's clients. The server never listens without one.

Clients send their key as `Authorization: Bearer` or as `x-api-key`; Anthropic's clients use both.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Iterable
from pathlib import Path

from r2v.errors import InputError, UsageError
from r2v.storage.files import writing

VARIABLE = "R2V_SERVE_KEY"
KEYS = "keys"
_LINE = re.compile(r"([A-Za-z0-9_.-]{1,64})\s+(\S{16,})")
_SHORTEST = 16


class ServerKeys:
    """Keys by the name under which their spending is booked."""

    def __init__(self, keys: dict[str, str]) -> None:
        # hashed, because the time of a lookup by the key itself would reveal a part of it
        self._names = {_hash(key): name for name, key in keys.items()}
        self._keys = tuple(key.encode() for key in keys.values())

    def stand_in(self, text: bytes) -> bool:
        """True if a text that would go to the provider contains a key."""
        return any(key in text for key in self._keys)

    def name_of(self, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        """Return the name of the key in a request's headers; None if they hold no valid one."""
        for name, value in headers:
            header = name.lower()
            key = value.decode("latin-1").strip()
            if header == b"authorization":
                scheme, _, key = key.partition(" ")
                if scheme.lower() != "bearer":
                    continue
            elif header not in (b"x-api-key", b"api-key"):
                continue
            if key_name := self._names.get(_hash(key.strip())):
                return key_name
        return None


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogatepass")).digest()


def server_keys(folder: Path) -> tuple[ServerKeys, Path | None]:
    """Return the keys and their file, None for a key in R2V_SERVE_KEY. The file has mode 0600 and a line `NAME KEY` for
    each key; it is written if missing. Raises InputError for another line or no key, UsageError for a short key in the
    environment."""
    given = os.environ.get(VARIABLE, "")
    if given:
        if len(given) < _SHORTEST:
            raise UsageError(f"{VARIABLE}: has {len(given)} characters; a key has at least {_SHORTEST}")
        return ServerKeys({"default": given}), None
    path = folder / KEYS
    if not path.exists():
        with writing(path):
            folder.mkdir(parents=True, exist_ok=True)
            # O_EXCL: of two servers that start at once, the second fails instead of replacing the key
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(f"default r2v-{secrets.token_urlsafe(32)}\n")
    keys = {}
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise InputError(f"{path}:{number}: not a line NAME KEY, with a key of at least {_SHORTEST} characters")
        keys[match[1]] = match[2]
    if not keys:
        raise InputError(f"{path}: holds no key; write a line NAME KEY, or remove the file for a new one")
    return ServerKeys(keys), path
