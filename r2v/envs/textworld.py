"""TextWorld (Côté et al., 2018), of PyPI's textworld: rooms, doors, keys and containers, and a quest told in words.

    env: {benchmark: textworld, options: {quest: 4, rooms: 4, objects: 8, games: 400}}

Others wrote the generator, the logic and the planner. A task is the number of a game, which the goal names; the
objective stands on every page, as the generator words it (its last action alone, so that the way there has to be
found). Games are played by textworld's own logic without a compiled story file, so its pages are put into words here:
what is in the room, what is carried, and which commands are possible. The expert is textworld's planner, from any
state: it walks the conversation's commands again in a copy of the game, so it knows rooms that nobody has seen and is
an upper bound for a reader of the pages. All depends on the task alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.util import find_spec
from threading import RLock
from typing import Any

from r2v.constraints import Range, require
from r2v.data.action import parse_action
from r2v.envs import textworld_surface
from r2v.envs.base import Capabilities, Info, Task
from r2v.envs.pace import Pace
from r2v.errors import UsageError
from r2v.llm.types import Request
from r2v.wire.message import Message, ToolSpec

_TOLD = 'Do what every page says after "objective:".'
_GAME = re.compile(r'\(game "(\d+) (\d+) (\d+) (\d+)"\)')
_DIRECTIONS = {"north_of": "north", "south_of": "south", "east_of": "east", "west_of": "west"}
_TOOL = ToolSpec(
    name="do",
    description="Carry out one of the commands that the page lists.",
    parameters={
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "required": ["command"],
        "additionalProperties": False,
    },
)


_TURN = RLock()
"""Worlds are played in threads, and textworld's parser and generator are for one of them at a time."""
Fact = tuple[str, ...]
"""A relation and the names of what stands in it."""


def call(command: str) -> str:
    """The action that carries out a command."""
    return json.dumps({"tool": "do", "command": command}, separators=(",", ":"))


class TextWorldGame:
    """One game as an `Environment` that `Snapshots`: a state is the commands that led to it."""

    def __init__(self) -> None:
        self._task: Task | None = None
        self._game: Any = None
        self._done: tuple[str, ...] = ()

    def reset(self, *, seed: int, task: Task) -> tuple[str, Info]:
        """The game's first page."""
        self._task, self._game, self._done = task, _begun(*task.payload["game"]), ()
        return page(self._game.state), Info()

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Carry a command out. What is none of those on the page changes nothing, and answers one error line."""
        if self._game is None:
            raise RuntimeError("no task yet: reset first")
        command = _command_of(action)
        if command not in self._game.state["admissible_commands"]:
            return (
                '{"error":"not possible here; one of the commands on the page"}',
                0.0,
                False,
                False,
                Info(is_error=True),
            )
        state, _, over = _gone_on(self._game, command)
        self._done = (*self._done, command)
        won = bool(state["won"])
        info = Info(success=won if over else None, partial_score=float(won))
        return page(state), float(won), over, False, info

    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """One tool, which takes a command."""
        return (_TOOL,)

    def snapshot(self) -> Any:
        """The game's task and the commands so far."""
        return self._task, self._done

    def restore(self, state: Any) -> None:
        """Walk the commands again: a copy of a game takes longer than twenty of them."""
        task, done = state
        self.reset(seed=0, task=task)
        for command in done:
            _gone_on(self._game, command)
        self._done = done


class TextWorld:
    """Games of one size: `quest` actions at least apart from their end, `rooms`, `objects`; `games` of them."""

    name = "textworld"
    version = "2"
    capabilities = Capabilities(snapshot=True, expert=True)
    more_tasks = "raise env.options.games"
    pace = Pace(
        reset_seconds=0.3, step_seconds=0.002, teacher_steps=5, prompt_tokens=500, page_tokens=160, action_tokens=12
    )

    def __init__(self, *, quest: int = 4, rooms: int = 4, objects: int = 8, games: int = 400) -> None:
        for name, value, most in (
            ("quest", quest, 20),
            ("rooms", rooms, 30),
            ("objects", objects, 60),
            ("games", games, 100_000),
        ):
            require(f"env.options.{name}", Range(at_least=1, at_most=most), value)
        self.require_set_up()
        self._tasks = [_task(quest, rooms, objects, number) for number in range(games)]

    @staticmethod
    def require_set_up(**options: Any) -> None:
        """Raises UsageError where textworld is not installed."""
        if find_spec("textworld") is None:
            raise UsageError("env.benchmark=textworld: textworld is not installed; pip install 'r2v[textworld]'")

    def tasks(self) -> Sequence[Task]:
        """Game by game; none of them is made to list it."""
        return self._tasks

    def make(self) -> TextWorldGame:
        """A fresh world."""
        return TextWorldGame()

    def expert(self, request: Request) -> str:
        """What textworld's planner does next; it looks around where the quest can no longer be done."""
        goal = next(message.text for message in request.messages if message.role == "user")
        named = _GAME.search(goal)
        if named is None:
            raise UsageError(f'textworld: the goal names no game, as in (game "4 4 8 17"): {goal:.80}')
        size = tuple(int(number) for number in named.groups())
        return call(_planned(size, tuple(_carried_out(request.messages))))

    def decoys(self, observation: str, goal: str, count: int, u: float) -> list[str]:
        """Lines about things like those of the page, by names that nothing has."""
        return textworld_surface.decoys(observation, goal, count, u)

    def injection(self, observation: str, goal: str, family: str, u: float) -> tuple[str, str]:
        """(line to plant, canary): an instruction to carry out a command of the page that leads nowhere."""
        return textworld_surface.injection(observation, goal, family, u)


def _task(quest: int, rooms: int, objects: int, number: int) -> Task:
    return Task(
        task_id=f"textworld-{quest}-{rooms}-{objects}-{number:05}",
        goal=f'{_TOLD} (game "{quest} {rooms} {objects} {number}")',
        template_id=f"{quest}-{rooms}-{objects}",
        payload={"game": (quest, rooms, objects, number)},
    )


@lru_cache(maxsize=256)
def _made(quest: int, rooms: int, objects: int, number: int) -> Any:
    """The game; some .3 s of generating."""
    from textworld import GameOptions
    from textworld.generator import make_game

    options = GameOptions()
    options.seeds = number
    options.nb_rooms, options.nb_objects, options.quest_length = rooms, objects, quest
    options.grammar.only_last_action = True
    return make_game(options)


def _begun(quest: int, rooms: int, objects: int, number: int) -> Any:
    """The game at its start, played by textworld's logic."""
    with _TURN:
        from textworld import EnvInfos
        from textworld.envs.tw import TextWorldEnv
        from textworld.generator.inform7 import Inform7Game

        begun = TextWorldEnv(EnvInfos(policy_commands=True, facts=True))
        begun._game = _made(quest, rooms, objects, number)  # load() reads the same from a file
        begun._inform7 = Inform7Game(begun._game)
        begun.reset()
    return begun


def _gone_on(game: Any, command: str) -> tuple[Any, float, bool]:
    """What a command led to."""
    with _TURN:
        state, score, over = game.step(command)
    return state, score, bool(over)


def page(state: Any) -> str:
    """What the player knows where they stand, in words: objective, room, exits, things, and possible commands."""
    facts = sorted((fact.name, *(one.name for one in fact.arguments)) for fact in state["facts"])
    here = next(room for kind, who, room in (fact for fact in facts if len(fact) == 3) if (kind, who) == ("at", "P"))
    lines = [f"objective: {' '.join(state['objective'].split())}", f"you are in: {here}"]
    lines += [f"exit: {way}" for way in _exits(facts, here)]
    lines += [f"here: {_described(facts, name)}" for name in _held(facts, "at", here) if name != "P"]
    lines.append(f"you carry: {', '.join(_held(facts, 'in', 'I')) or 'nothing'}")
    return "\n".join([*lines, *(f"command: {command}" for command in state["admissible_commands"])])


def _held(facts: list[Fact], kind: str, place: str) -> list[str]:
    """What is at, in or on a place."""
    return [fact[1] for fact in facts if (fact[0], *fact[2:]) == (kind, place)]


def _exits(facts: list[Fact], here: str) -> Iterator[str]:
    doors = {fact[3]: fact[2] for fact in facts if fact[:2] == ("link", here)}
    for kind, there, *of in facts:
        if kind in _DIRECTIONS and of == [here]:
            yield _DIRECTIONS[kind] + (f", {_described(facts, doors[there])}" if there in doors else "")


def _described(facts: list[Fact], name: str) -> str:
    """A thing, whether it is open, and what can be seen on or in it."""
    words = [kind for kind in ("open", "closed", "locked") if (kind, name) in facts]
    seen = _held(facts, "on", name) + (_held(facts, "in", name) if "open" in words else [])
    return ", ".join([name, *words]) + (f", with {', '.join(seen)}" if seen else "")


def _command_of(action: str) -> str:
    parsed = parse_action(action)
    return str(parsed.arguments.get("command", "")).strip() if parsed.action_type == "do" else ""


def _carried_out(messages: Sequence[Message]) -> Iterator[str]:
    """The commands of a conversation that the game took: those that no error line answers."""
    for message, answer in zip(messages, messages[1:], strict=False):
        if message.role == "assistant" and not answer.text.startswith('{"error"'):
            yield _command_of(message.text)


@lru_cache(maxsize=4096)
def _planned(size: tuple[int, ...], done: tuple[str, ...]) -> str:
    game = _begun(*size)
    for command in done:
        if command in game.state["admissible_commands"]:
            _gone_on(game, command)
    wanted = game.state["policy_commands"]
    return str(wanted[0]) if wanted else "look"
