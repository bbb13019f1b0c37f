"""Conversations with emulated providers, in this process or in one that is killed on the way."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from r2v.emulator import Emulator, Lifecycle
from r2v.llm.providers.anthropic import Anthropic
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy
from r2v.llm.providers.openai import OpenAI
from r2v.llm.providers.prices import rate_of
from r2v.llm.providers.project_session import ProjectSession
from r2v.llm.providers.provider import Provider
from r2v.llm.providers.remote import ProviderRemote, Unanswered
from r2v.llm.providers.spending.budget import SharedBudget
from r2v.llm.types import ChatModel, Request
from r2v.llm.waves import Waves
from r2v.randomness import digest
from r2v.wire.message import Message

MODELS = {"openai": "gpt-5.2", "anthropic": "claude-haiku-4-5"}
PATIENCE = 30.0
"""Seconds a call may take before the test fails; the plan's `timeout` bounds a lost call."""
QUICK = {"mode": "batch", "flush_seconds": 0.05, "poll_seconds": 0.02, "reconcile_after": 0.2, "timeout": 0.1}


def environment(emulator: Emulator) -> dict[str, str]:
    """Return the variables that direct both SDKs to an emulator."""
    return {
        "OPENAI_API_KEY": "sk-test-0123456789",
        "ANTHROPIC_API_KEY": "sk-ant-test-0123456789",
        "OPENAI_BASE_URL": emulator.openai_url,
        "ANTHROPIC_BASE_URL": emulator.anthropic_url,
    }


def paid_turns(emulator: Emulator) -> Counter[tuple[str, str, int]]:
    """Return how often each turn was billed, without the preflight calls."""
    before = digest("preflight").hex()[:16]
    paid = emulator.ledger().paid()
    return Counter({turn: times for turn, times in paid.items() if turn[1] != before})


def remote(
    provider: str,
    folder: Path,
    *,
    sync: Callable[[int], None] = os.fsync,
    scope: str = "a",
    project: Path | None = None,
    project_max_usd: float | None = None,
    budget: SharedBudget | None = None,
    only: bool = False,
    models: Mapping[str, str] = MODELS,
    **plan: Any,
) -> ProviderRemote:
    """Return a provider's model with short waits unless the plan says otherwise; in a project where one is given."""

    async def adopt(other: Path) -> None:
        await remote(provider, other, scope=scope, project=project, only=True, **plan).collect_batches()

    session = None
    if project is not None:
        session = ProjectSession(
            project,
            payer=folder,
            scope={"test": scope, "provider": provider},
            adopt=None if only else adopt,
            project_max_usd=project_max_usd,
            budget=budget,
            numbered=not only,
        )
    rate = rate_of(provider, models[provider])
    settings = DispatchPolicy(**{**QUICK, **plan})
    made: Provider = OpenAI(rate, timeout=PATIENCE) if provider == "openai" else Anthropic(rate, timeout=PATIENCE)
    return ProviderRemote(made, rate, folder, settings, scope={"test": scope}, session=session, sync=sync)


async def converse(model: ChatModel, number: int, turns: int, said: list[str] | None = None) -> list[str]:
    """Return the model's replies turn by turn; a refused turn ends the conversation."""
    said = [] if said is None else said
    for turn in range(turns):
        messages = [Message(role="user", content=f"conversation {number}")]
        for text in said:
            messages += [Message(role="assistant", content=text), Message(role="user", content="go on")]
        request = Request(messages=tuple(messages), key=("talk", number, turn), max_tokens=50)
        said.append((await model.reply(request)).text)
    return said


async def guarded(model: ChatModel, number: int, turns: int) -> list[str]:
    """As `converse`; an unanswered question ends it with a mark that is no dialogue."""
    said: list[str] = []
    try:
        return await converse(model, number, turns, said)
    except Unanswered as error:
        return [*said, f"!{'final' if error.final else 'open'}"]


def play(
    provider: str, folder: Path, *, count: int = 4, turns: int = 2, sync: Callable[[int], None] = os.fsync, **plan: Any
) -> list[list[str]]:
    """Play `count` conversations of `turns` turns to their end."""
    waves = Waves(max_conversations=max(count, 1))
    model = waves.model(remote(provider, folder, sync=sync, **plan))
    return waves.run(partial(guarded, model, number, turns) for number in range(count))


class HeldLifecycle(Lifecycle):
    """Batches of an emulator that end when the test says so, however slow the machine; its clock is the real one."""

    def __init__(self) -> None:
        super().__init__(seconds=0.0)
        self.ends: list[float] = []

    def progress(self, polls: int, age: float) -> float:
        """Return 1.0 for a batch made before the test's last `end_those_made`, else 0.5."""
        return 1.0 if self.ends and time.time() - age < self.ends[-1] else 0.5

    def end_those_made(self) -> None:
        """End the batches made so far."""
        self.ends.append(time.time())

    def release(self) -> None:
        """Let all batches end at once from now on."""
        self.ends.append(float("inf"))


class Killer:
    """Stand-in for fsync: kills the process at the `at`-th call, when the rows are on disk (`after`), before they are
    (`before`), or with half of the last one there (`torn`)."""

    def __init__(self, at: int, how: str, path: Path) -> None:
        self.at, self.how, self.count = at, how, 0
        self.size = path.stat().st_size if path.exists() else 0

    def __call__(self, descriptor: int) -> None:
        self.count += 1
        if self.count == self.at:
            now = os.fstat(descriptor).st_size
            if self.how != "after":
                os.ftruncate(descriptor, self.size if self.how == "before" else (self.size + now) // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        os.fsync(descriptor)
        self.size = os.fstat(descriptor).st_size


Spec = dict[str, Any]
"""provider, folder, urls (name -> value of the environment), count, turns; at and how of a Killer; a Plan's fields."""


def play_spec(spec: Spec) -> None:
    """Play a specification in a process of its own."""
    os.environ.update(spec["urls"])
    path = Path(spec["folder"]) / "journal.jsonl"
    sync = Killer(spec["at"], spec["how"], path)
    play(
        spec["provider"],
        Path(spec["folder"]),
        count=spec["count"],
        turns=spec["turns"],
        sync=sync,
        **spec.get("plan", {}),
    )


def killed(spec: Spec) -> bool:
    """Play in another process; return True if it was killed on the way, False if it finished."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.llm.talk", "openai", "anthropic"])
    process = context.Process(target=play_spec, args=(spec,))
    process.start()
    process.join(60.0)
    assert process.exitcode in (0, -signal.SIGKILL), f"the process ended by {process.exitcode}"
    return process.exitcode != 0
