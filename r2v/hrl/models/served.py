"""Served roles: actor and guidance behind a serving engine (`policy.engine`), which follows their adapters.

    served = ServedRoles(servers, folder)
    adapter = served.publish("actor", policy)            # written where they have changed since
    drawn = served.draw(adapter, prompts, draws, ends)   # as r2v.llm.local.decode.generate, by the engine

The engine holds the base once more and learns of adapters by the name of their content at the first request of theirs;
those of earlier updates are taken from it. Draws are keyed. An engine sums in another order than the model that is
trained, so the log-probabilities that it drew with are kept beside the policy's own, and an update weighs the two
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
"""Folder of an attempt in which each rank keeps the adapters that its server reads."""


class ServedRoles:
    """The adapters of the roles, in `folder` of an attempt, and the servers that draw completions with them."""

    def __init__(self, servers: Sequence[EngineServer], folder: Path) -> None:
        self.servers, self.folder = servers, folder
        self._published: dict[str, Adapter] = {}

    def publish(self, role: str, loaded: Loaded, name: str) -> Adapter:
        """The adapters `name` of a model as they are now, which the engine knows by their content."""
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
        place = draft.rename(self.folder / adapter).resolve()
        self._published[role] = Adapter(name=adapter, folder=place)
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
        """One completion per draw, all of them at once. Raises UsageError for a prompt that does not fit,
        EnvironmentFault where the engine cannot be had."""
        return run_async(self._draw(adapter, prompts, draws, end_ids))

    def close(self) -> None:
        """End the servers of our own, which hold a part of the GPU, and drop the adapters' files."""
        for server in self.servers:
            if isinstance(server, OwnServer):
                server.stop()
        remove_own(self.folder, ATTEMPT_PART)

    async def _draw(
        self, adapter: Adapter, prompts: Sequence[Sequence[int]], draws: Sequence[Draw], end_ids: frozenset[int]
    ) -> list[Drawn]:
        async with EngineClient(self.servers, adapter) as client:

            async def one(draw: Draw) -> Drawn:
                prompt = prompts[draw.prompt]
                try:
                    return await client.complete(client.place_of(*prompt), prompt, draw, end_ids)
                except Unanswered as error:
                    raise UsageError(f"{error}; prompts are at most policy.max_seq_len") from None

            return list(await asyncio.gather(*client.start(one(draw) for draw in draws)))

    async def _forget(self, adapter: Adapter) -> None:
        async with EngineClient(self.servers, None) as client:
            await asyncio.gather(*(client.forget(place, adapter) for place in range(len(self.servers))))
