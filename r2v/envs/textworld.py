"""TextWorld (Côté et al., 2018), from PyPI's textworld: text quests with rooms, doors, keys and containers.

    env: {benchmark: textworld, options: {quest: 4, rooms: 4, objects: 8, games: 400}}

Generator, logic and planner are textworld's own. A task is the number of a game, which the goal names; every page
shows the objective in the generator's words (its last action alone, so that the agent must find the way). Games run on
textworld's logic without a compiled story file, so this module words the pages: the room's contents, the inventory and
the possible commands. The expert is textworld's planner and works from any state: it replays the conversation's
commands in a copy of the game. It knows unseen rooms, so it is an upper bound for an agent that reads pages.
Everything depends on the task alone.
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
from r2v.envs.base import Capabilities, Info, Task, tool
from r2v.envs.pace import Pace
from r2v.errors import UsageError
from r2v.llm.types import Request
from r2v.wire.message import Message, ToolSpec

_TOLD = 'Do what every page says after "objective:".'
_GAME = re.compile(r'\(game "(\d+) (\d+) (\d+) (\d+)"\)')
_DIRECTIONS = {"north_of": "north", "south_of": "south", "east_of": "east", "west_of": "west"}
_TOOL = tool("do", "Carry out one of the commands that the page lists.", command={"type": "string"})

_TURN = RLock()
"""Worlds run in threads, and textworld's parser and generator are not thread-safe."""
Fact = tuple[str, ...]
"""A relation and the names of its arguments."""


def call(command: str) -> str:
    """Return the action that carries out a command."""
    return json.dumps({"tool": "do", "command": command}, separators=(",", ":"))


class TextWorldGame:
    """A game as an `Environment` that `Snapshots`: a state is the commands that led to it."""

    def __init__(self) -> None:
        self._task: Task | None = None
        self._game: Any = None
        self._done: tuple[str, ...] = ()

    def reset(self, *, seed: int, task: Task) -> tuple[str, Info]:
        """Start the task's game and return its first page."""
        self._task, self._game, self._done = task, _begun(*task.payload["game"]), ()
        return page(self._game.state), Info()

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Carry out a command. A command not on the page changes nothing and returns one error line."""
        if self._game is None:
            raise RuntimeError("no task yet: reset first")
        command = _command_of(action)
        if command not in self._game.state["admissible_commands"]:
            refusal = '{"error":"not possible here; one of the commands on the page"}'
            return refusal, 0.0, False, False, Info(is_error=True)
        state, _, over = _execute(self._game, command)
        self._done = (*self._done, command)
        won = bool(state["won"])
        info = Info(success=won if over else None, partial_score=float(won))
        return page(state), float(won), over, False, info

    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """Return the one tool, which takes a command."""
        return (_TOOL,)

    def snapshot(self) -> Any:
        """Return the game's task and the commands so far."""
        return self._task, self._done

    def restore(self, state: Any) -> None:
        """Replay the commands of `state`; copying a game takes longer than twenty commands."""
        task, done = state
        self.reset(seed=0, task=task)
        for command in done:
            _execute(self._game, command)
        self._done = done


class TextWorld:
    """`games` games of one size: a quest of `quest` actions, `rooms` rooms and `objects` objects."""

    name = "textworld"
    version = "2"
    capabilities = Capabilities(snapshot=True, expert=True)
    more_tasks = "raise env.options.games"
    pace = Pace(
        reset_seconds=0.3, step_seconds=0.002, teacher_steps=5, prompt_tokens=500, page_tokens=160, action_tokens=12
    )
    decoys, injection = staticmethod(textworld_surface.decoys), staticmethod(textworld_surface.injection)

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
        """Raise UsageError if textworld is not installed."""
        if find_spec("textworld") is None:
            raise UsageError("env.benchmark=textworld: textworld is not installed; pip install 'r2v[textworld]'")

    def tasks(self) -> Sequence[Task]:
        """Return one task per game; listing generates no game."""
        return self._tasks

    def make(self) -> TextWorldGame:
        """Return a fresh world."""
        return TextWorldGame()

    def expert(self, request: Request) -> str:
        """Return the next command of textworld's planner, `look` if the quest cannot be completed any more. Raises
        UsageError for a goal without a game."""
        goal = next(message.text for message in request.messages if message.role == "user")
        named = _GAME.search(goal)
        if named is None:
            raise UsageError(f'textworld: the goal names no game, as in (game "4 4 8 17"): {goal:.80}')
        size = tuple(int(number) for number in named.groups())
        return call(_planned(size, tuple(_carried_out(request.messages))))


def _task(quest: int, rooms: int, objects: int, number: int) -> Task:
    return Task(
        task_id=f"textworld-{quest}-{rooms}-{objects}-{number:05}",
        goal=f'{_TOLD} (game "{quest} {rooms} {objects} {number}")',
        template_id=f"{quest}-{rooms}-{objects}",
        payload={"game": (quest, rooms, objects, number)},
    )


@lru_cache(maxsize=256)
def _generated_game(quest: int, rooms: int, objects: int, number: int) -> Any:
    """Return the game; generating it takes about .3 s."""
    from textworld import GameOptions
    from textworld.generator import make_game

    options = GameOptions()
    options.seeds = number
    options.nb_rooms, options.nb_objects, options.quest_length = rooms, objects, quest
    options.grammar.only_last_action = True
    return make_game(options)


def _begun(quest: int, rooms: int, objects: int, number: int) -> Any:
    """Return the game in its initial state, run by textworld's logic."""
    with _TURN:
        from textworld import EnvInfos
        from textworld.envs.tw import TextWorldEnv
        from textworld.generator.inform7 import Inform7Game

        begun = TextWorldEnv(EnvInfos(policy_commands=True, facts=True))
        begun._game = _generated_game(quest, rooms, objects, number)  # load() would read the same from a file
        begun._inform7 = Inform7Game(begun._game)
        begun.reset()
    return begun


def _execute(game: Any, command: str) -> tuple[Any, float, bool]:
    """Execute a command and return (state, score, True once over)."""
    with _TURN:
        state, score, over = game.step(command)
    return state, score, bool(over)


def page(state: Any) -> str:
    """Return a state's page: objective, room, exits, objects, inventory and possible commands, one per line."""
    facts = sorted((fact.name, *(argument.name for argument in fact.arguments)) for fact in state["facts"])
    here = next(room for kind, who, room in (fact for fact in facts if len(fact) == 3) if (kind, who) == ("at", "P"))
    lines = [f"objective: {' '.join(state['objective'].split())}", f"you are in: {here}"]
    lines += [f"exit: {way}" for way in _exits(facts, here)]
    lines += [f"here: {_described(facts, name)}" for name in _held(facts, "at", here) if name != "P"]
    lines.append(f"you carry: {', '.join(_held(facts, 'in', 'I')) or 'nothing'}")
    return "\n".join([*lines, *(f"command: {command}" for command in state["admissible_commands"])])


def _held(facts: list[Fact], kind: str, location: str) -> list[str]:
    """Return the names related by `kind` (at, in, on) to a location."""
    return [fact[1] for fact in facts if (fact[0], *fact[2:]) == (kind, location)]


def _exits(facts: list[Fact], here: str) -> Iterator[str]:
    doors = {fact[3]: fact[2] for fact in facts if fact[:2] == ("link", here)}
    for kind, there, *of in facts:
        if kind in _DIRECTIONS and of == [here]:
            yield _DIRECTIONS[kind] + (f", {_described(facts, doors[there])}" if there in doors else "")


def _described(facts: list[Fact], name: str) -> str:
    """Return an object's name, its state (open, closed, locked) and its visible contents."""
    words = [kind for kind in ("open", "closed", "locked") if (kind, name) in facts]
    seen = _held(facts, "on", name) + (_held(facts, "in", name) if "open" in words else [])
    return ", ".join([name, *words]) + (f", with {', '.join(seen)}" if seen else "")


def _command_of(action: str) -> str:
    parsed = parse_action(action)
    return str(parsed.arguments.get("command", "")).strip() if parsed.action_type == "do" else ""


def _carried_out(messages: Sequence[Message]) -> Iterator[str]:
    """Yield the commands of a conversation that the game executed; those answered by an error line are left out."""
    for message, answer in zip(messages, messages[1:], strict=False):
        if message.role == "assistant" and not answer.text.startswith('{"error"'):
            yield _command_of(message.text)


@lru_cache(maxsize=4096)
def _planned(size: tuple[int, ...], done: tuple[str, ...]) -> str:
    game = _begun(*size)
    for command in done:
        if command in game.state["admissible_commands"]:
            _execute(game, command)
    policy = game.state["policy_commands"]
    return str(policy[0]) if policy else "look"
