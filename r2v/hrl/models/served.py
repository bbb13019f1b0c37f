"""Served roles: actor and guidance behind a serving engine (`policy.engine`), which loads their current adapters.

    served = ServedRoles(servers, folder)
    adapter = served.publish("actor", policy)            # written if changed
    drawn = served.draw(adapter, prompts, draws, ends)   # as r2v.llm.local.decode.generate does

The engine holds another copy of the base and loads an adapter, named by its content, at its first request; those of
earlier updates are unloaded. Draws are keyed. An engine sums in another order than the trained model, so its
log-probabilities are kept with the policy's own, and an update weighs tokens by their ratio
(`r2v.hrl.algorithm.losses.importance`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from r2v.errors import UsageError
from r2v.event_loop import run_async
from r2v.llm.engines.client import Adapter, EngineClient
from r2v.llm.engines.servers import EngineServer, OwnServer
from r2v.llm.local.decode import Draw, Drawn
from r2v.llm.providers.remote import Unanswered
from r2v.policy.export import export_adapters
from r2v.policy.load import Loaded
from r2v.storage.artifact_manifest import json_sha256
from r2v.storage.files import writing
from r2v.storage.integrity import content_files
from r2v.storage.removal import ATTEMPT_PART, remove_own

SERVED = "served"
"""Folder of an attempt for each rank's adapters, from which its server reads."""


class ServedRoles:
    """Adapters of the roles, in `folder` of an attempt, and the servers that draw completions with them."""

    def __init__(self, servers: Sequence[EngineServer], folder: Path) -> None:
        self.servers, self.folder = servers, folder
        self._published: dict[str, Adapter] = {}

    def publish(self, role: str, loaded: Loaded, name: str) -> Adapter:
        """Return the adapter `name` of a model with its current weights, written to the folder if they have changed."""
        draft = self.folder / f"tmp-{role}"
        remove_own(draft, ATTEMPT_PART)
        with writing(draft):
            draft.mkdir(parents=True)
            export_adapters(loaded, draft, name)
        adapter = f"r2v-{role}-{json_sha256(content_files(draft))[:16]}"
        before = self._published.get(role)
        if before is not None and before.name == adapter:
            remove_own(draft, ATTEMPT_PART)
            return before
        remove_own(self.folder / adapter, ATTEMPT_PART)
        published_folder = draft.rename(self.folder / adapter).resolve()
        self._published[role] = Adapter(name=adapter, folder=published_folder)
        if before is not None:
            run_async(self._forget(before))
            remove_own(before.folder, ATTEMPT_PART)
        return self._published[role]

    def draw(
        self,
        adapter: Adapter,
        prompts: Sequence[Sequence[int]],
        draws: Sequence[Draw],
        end_ids: frozenset[int],
    ) -> list[Drawn]:
        """Return one completion per draw, all requested at once. Raises UsageError for a prompt that is too long,
        EnvironmentFault if the engine is unavailable."""
        return run_async(self._draw(adapter, prompts, draws, end_ids))

    def close(self) -> None:
        """Stop our own servers, which hold GPU memory, and remove the adapters' files."""
        for server in self.servers:
            if isinstance(server, OwnServer):
                server.stop()
        remove_own(self.folder, ATTEMPT_PART)

    async def _draw(
        self, adapter: Adapter, prompts: Sequence[Sequence[int]], draws: Sequence[Draw], end_ids: frozenset[int]
    ) -> list[Drawn]:
        async with EngineClient(self.servers, adapter) as client:

            async def complete(draw: Draw) -> Drawn:
                prompt = prompts[draw.prompt]
                try:
                    return await client.complete(client.server_index(*prompt), prompt, draw, end_ids)
                except Unanswered as error:
                    raise UsageError(f"{error}; prompts are at most policy.max_seq_len") from None

            return list(await asyncio.gather(*client.start(complete(draw) for draw in draws)))

    async def _forget(self, adapter: Adapter) -> None:
        async with EngineClient(self.servers, None) as client:
            await asyncio.gather(*(client.unload(index, adapter) for index in range(len(self.servers))))
