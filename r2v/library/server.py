"""Server: `r2v serve` in the caller's event loop.

    async with Server(config, bundle="outputs/bundles/desk") as server:
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=server.key)

In a notebook, where a block cannot span cells: `await server.start()` and `await server.stop()`.
"""

from __future__ import annotations

import secrets
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from r2v.config import Config
from r2v.library.conversation import KEY_NAME


class Server:
    """Serves a bundle's pair, or the configured LLM alone, on the address of `config.serve`.

    record: write the text of the sessions. root: the folder of books and logs.
    """

    def __init__(
        self, config: Config, *, bundle: str | Path | None = None, record: bool = False, root: str | Path = "."
    ) -> None:
        self.config, self.root, self.record = config, Path(root), record
        self.bundle = None if bundle is None else Path(bundle)
        self.url = ""
        """Address without a path; empty unless listening."""
        self.key = secrets.token_urlsafe(32)
        """Key for clients, drawn anew for each server."""

    async def start(self) -> Self:
        """Start listening. Raises UsageError, InputError, LeaseConflict, and EnvironmentFault if the port is taken."""
        from r2v.serve.server import listening

        self._resources = AsyncExitStack()
        keys = {KEY_NAME: self.key}
        listener = await self._resources.enter_async_context(
            listening(self.config, self.root, record=self.record, keys=keys, bundle=self.bundle)
        )
        self.url = listener.url
        return self

    async def stop(self) -> None:
        """Answer the requests in flight, and close."""
        self.url = ""
        await self._resources.aclose()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
