"""Emulator of both providers on one loopback port, as a context manager."""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from r2v.emulator.answers import Answer, first_of
from r2v.emulator.faults import Fault
from r2v.emulator.ledger import Statement, read_ledger
from r2v.emulator.limits import EmulatedLimits, Lifecycle, Timing
from r2v.emulator.server import EmulatorServer
from r2v.emulator.server_state import EmulatedBatch, ServerState
from r2v.errors import EnvironmentFault, UsageError
from r2v.llm.scripted import count_tokens
from r2v.storage.lease import lease


class Emulator:
    """Server of both APIs between `__enter__` and `__exit__`.

    answer: the models' answer function, its dotted path, or a short name (see `answers`); several are called in turn.
    faults: faults to inject; seed: seed of their probabilities. models: names served although the providers do not
    list them or have retired them. count: tokens of a text, for billing prompts.
    folder: folder of the state, from which a later emulator continues even after a crash; None: a temporary folder.
    ledger: the ledger's file; None: inside the folder. port: 0 takes a free one. clock: seconds since 1970.
    Raises LeaseConflict if another emulator serves the folder, EnvironmentFault if the disk or the port is refused,
    UsageError for an invalid port or an answer that cannot be loaded.
    """

    def __init__(
        self,
        *,
        answer: Answer | str | Sequence[Answer | str] = "echo",
        faults: Sequence[Fault] = (),
        seed: int = 0,
        folder: Path | None = None,
        ledger: Path | None = None,
        port: int = 0,
        limits: EmulatedLimits | None = None,
        lifecycle: Lifecycle | None = None,
        timing: Timing | None = None,
        clock: Callable[[], float] = time.time,
        models: Collection[str] = (),
        count: Callable[[str], int] = count_tokens,
    ) -> None:
        self._folder, self._ledger, self._port = folder, ledger, port
        self._make_state = partial(
            ServerState,
            answer=first_of([answer] if callable(answer) or isinstance(answer, str) else answer),
            faults=tuple(faults),
            seed=seed,
            limits=limits or EmulatedLimits(),
            lifecycle=lifecycle or Lifecycle(),
            timing=timing or Timing(),
            clock=clock,
            models=models,
            count=count,
        )

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        with ExitStack() as starting:
            folder = self._folder or Path(starting.enter_context(tempfile.TemporaryDirectory(prefix="r2v-providers-")))
            folder.mkdir(parents=True, exist_ok=True)
            starting.enter_context(lease(folder / "served"))
            self.ledger_path = self._ledger or folder / "ledger.jsonl"
            state = self._make_state(folder, ledger=self.ledger_path)
            starting.callback(state.close)
            server = starting.enter_context(_serve(state, self._port))
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
            thread.start()
            starting.callback(server.cut_all)
            starting.callback(thread.join)
            starting.callback(server.shutdown)
            starting.callback(state.stopping.set)
            self._site, self.port = state, server.server_address[1]
            self._stack = starting.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def openai_url(self) -> str:
        """Return the `base_url` for the openai client."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def anthropic_url(self) -> str:
        """Return the `base_url` for the anthropic client."""
        return f"http://127.0.0.1:{self.port}"

    def batches(self) -> list[EmulatedBatch]:
        """Return copies of all accepted and refused batches, oldest first."""
        with self._site.lock:
            return [replace(batch) for batch in self._site.batches.values()]

    def calls(self) -> Counter[tuple[str, str]]:
        """Return the number of calls served since the start by (provider, route), without those hit by a call fault."""
        with self._site.lock:
            return Counter(self._site.calls)

    def peak(self, provider: str) -> int:
        """Return the largest number of synchronous calls answered at the same time."""
        return self._site.peak[provider]

    def ledger(self) -> Statement:
        """Return the bills so far, including every accepted batch."""
        return read_ledger(self.ledger_path)


def _serve(state: ServerState, port: int) -> EmulatorServer:
    try:
        return EmulatorServer(state, port)
    except OverflowError as error:
        raise UsageError(f"port {port}: allowed: 0 to 65535; 0 takes a free one") from error
    except OSError as error:
        raise EnvironmentFault(
            f"port {port} cannot be served: {error.strerror or error}; name another, or 0 for any that is free"
        ) from error
