"""Chain benchmark, with success rates known in closed form: a check that outcomes are executed, not assumed.

A task is `length` doors in a row. Each page asks a question whose answer is a public function of its text; an actor of
accuracy p answers it with probability p, by its keyed draw. Doors are independent, no mistake ends an episode, and
only the environment decides success: an escalated step counts by its action, never by its actor. `hard` of the doors
are marked hard on the page, so a router can recognise them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from r2v.constraints import Range, require
from r2v.envs.base import Capabilities, Info, Task, tool
from r2v.llm.types import Request
from r2v.randomness import digest, generator, uniform
from r2v.wire.message import ToolSpec

Expert = Callable[[Request], str]
"""An actor as a function: a request's messages and key in, an action out."""

DOORS = ("a", "b", "c", "d")
_GO = tool("go", "Go through a door.", door={"type": "string", "enum": list(DOORS)})


def call(door: str) -> str:
    """Return the action that goes through a door."""
    return json.dumps({"tool": "go", "door": door}, separators=(",", ":"))


def right_action(observation: str) -> str:
    """Return the right action on a page, as a perfect verifier would score it."""
    question: str = _fields(observation)["question"]
    return call(DOORS[digest("chain", "door", question)[0] % len(DOORS)])


def _fields(observation: str) -> dict[str, str]:
    """Return the fields of a page; a perturbation may have put lines around it."""
    fields: dict[str, str] = json.loads(next(line for line in observation.splitlines() if '"question"' in line))
    return fields


def chain_actor(p_easy: float, p_hard: float | None = None) -> Expert:
    """Return an actor that is right with probability `p_easy`, or `p_hard` (default the same) on hard pages. The draw
    is keyed by the request."""

    def act(request: Request) -> str:
        page = next(message.text for message in reversed(request.messages) if '"question"' in message.text)
        right = right_action(page)
        hard = _fields(page)["look"] == "hard"
        accuracy = p_hard if hard and p_hard is not None else p_easy
        if uniform("chain", *request.key) < accuracy:
            return right
        wrong = [call(door) for door in DOORS if call(door) != right]
        return generator("chain", "wrong", *request.key).choice(wrong)

    return act


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainState:
    """State of an episode, also its snapshot. `right` has one verdict per step so far."""

    questions: tuple[str, ...]
    hard: frozenset[int]
    right: tuple[bool, ...] = ()

    @property
    def over(self) -> bool:
        """True if every door has been passed."""
        return len(self.right) == len(self.questions)


class ChainEnvironment:
    """An `Environment` that `Snapshots`: `length` doors, success if and only if every choice was right."""

    def __init__(self) -> None:
        self._state = ChainState(questions=(), hard=frozenset())

    def reset(self, *, seed: int, task: Task) -> tuple[str, Info]:
        """Return the first door's page. Questions and hard doors are functions of (task, seed)."""
        length = task.payload["length"]
        questions = tuple(digest("chain", "question", task.task_id, seed, at).hex()[:12] for at in range(length))
        places = generator("chain", "hard", task.task_id, seed).sample(range(length), task.payload["hard"])
        self._state = ChainState(questions=questions, hard=frozenset(places))
        return self._page(), Info()

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Go through a door; anything but the right call counts as wrong. Raises RuntimeError once over."""
        if self._state.over:
            raise RuntimeError("the episode is over: reset first")
        right = action == right_action(self._page())
        self._state = state = replace(self._state, right=(*self._state.right, right))
        success = all(state.right)
        info = Info(success=success if state.over else None, partial_score=sum(state.right) / len(state.questions))
        page = json.dumps({"page": "end"}, separators=(",", ":")) if state.over else self._page()
        return page, float(state.over and success), state.over, False, info

    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """Return the one tool, go."""
        return (_GO,)

    def snapshot(self) -> ChainState:
        """Return the whole state."""
        return self._state

    def restore(self, state: ChainState) -> None:
        """Return to `state`."""
        self._state = state

    def _page(self) -> str:
        at = len(self._state.right)
        return json.dumps(
            {
                "page": "door",
                "step": at + 1,
                "of": len(self._state.questions),
                "look": "hard" if at in self._state.hard else "easy",
                "question": self._state.questions[at],
            },
            separators=(",", ":"),
        )


class ChainBenchmark:
    """Chain benchmark. `p_easy` and `p_hard` are its expert's accuracies."""

    name = "chain"
    version = "1"
    more_tasks = "raise env.options.num_tasks"
    capabilities = Capabilities(snapshot=True, expert=True)

    def __init__(
        self,
        *,
        num_tasks: int = 2000,
        length: int = 10,
        hard: int = 0,
        p_easy: float = 0.995,
        p_hard: float | None = None,
    ) -> None:
        require("env.options.num_tasks", Range(at_least=0, at_most=1_000_000), num_tasks)
        require("env.options.length", Range(at_least=1, at_most=10_000), length)
        require("env.options.hard", Range(at_least=0, at_most=length), hard)
        for name, share in (("p_easy", p_easy), ("p_hard", p_easy if p_hard is None else p_hard)):
            require(f"env.options.{name}", Range(at_least=0, at_most=1), share)
        self._expert = chain_actor(p_easy, p_hard)
        self._tasks = tuple(
            Task(
                task_id=f"chain-{number:05d}",
                goal=f"go through the {length} doors of corridor {number}",
                template_id=f"chain-{length}-{hard}",
                payload={"length": length, "hard": hard},
            )
            for number in range(num_tasks)
        )

    def tasks(self) -> Sequence[Task]:
        """Return every task."""
        return self._tasks

    def make(self) -> ChainEnvironment:
        """Return a fresh corridor."""
        return ChainEnvironment()

    def expert(self, request: Request) -> str:
        """Return the action of an actor with the benchmark's accuracies."""
        return self._expert(request)

    def players(self) -> Mapping[str, Expert]:
        """Return the contract check's gold player, which is always right."""
        return {"gold": chain_actor(1.0)}
