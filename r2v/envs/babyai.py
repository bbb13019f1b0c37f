"""BabyAI (Chevalier-Boisvert et al., 2019), from PyPI's minigrid, as text: an agent in a grid of rooms.

    env: {benchmark: babyai, options: {levels: GoToLocal PickupLoc UnlockLocal PutNextLocal, instances: 60}}

World, missions and planner are minigrid's own. A task is a level and the number of a layout; the goal names both, so
goals are unique. An observation lists the objects in the seven by seven cells before the agent, one per line. The
expert is minigrid's bot and works from any state: it replays the conversation's actions in a copy of the layout. It
sees the whole grid, so it is an upper bound for an agent that reads pages. Everything depends on the task alone.
"""

from __future__ import annotations

import copy
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any

from r2v.constraints import Range, require
from r2v.data.action import parse_action
from r2v.envs import babyai_surface
from r2v.envs.base import Capabilities, Info, Task
from r2v.envs.pace import Pace
from r2v.errors import UsageError, nearest
from r2v.llm.types import Request
from r2v.wire.message import Message, ToolSpec

LEVELS = "GoToLocal PickupLoc UnlockLocal PutNextLocal"
"""The default: one room each, 2 to 25 steps."""
_TOLD = {
    "left": "Turn left where you stand.",
    "right": "Turn right where you stand.",
    "forward": "Go one cell forward; walls, closed doors and objects are in the way.",
    "pick": "Pick up the object in the cell before you; you carry one at most.",
    "drop": "Put what you carry into the cell before you, which must be empty.",
    "toggle": "Open or close the door or box in the cell before you; a locked door needs a key of its colour.",
    "wait": "Do nothing.",
}
_NAMES = tuple(_TOLD)
_NUMBERS = {name: number for number, name in enumerate(_NAMES)}
"""Minigrid's numbers of the actions."""
_LAYOUT = re.compile(r'\(layout "(\w+) (\d+)"\)')


def call(tool: str) -> str:
    """Return the action that calls a tool."""
    return json.dumps({"tool": tool}, separators=(",", ":"))


class BabyAIWorld:
    """One layout as an `Environment` that `Snapshots`: a state is a copy of the whole grid."""

    def __init__(self) -> None:
        self._grid: Any = None

    def reset(self, *, seed: int, task: Task) -> tuple[str, Info]:
        """Lay the task's grid out and return its first view."""
        self._grid = laid_out(task.payload["level"], task.payload["layout"])
        return view(self._grid), Info()

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Carry out a tool call. An unknown tool changes nothing and returns one error line."""
        if self._grid is None:
            raise RuntimeError("no task yet: reset first")
        number = _NUMBERS.get(parse_action(action).action_type)
        if number is None:
            return f'{{"error":"no such tool; one of {", ".join(_NUMBERS)}"}}', 0.0, False, False, Info(is_error=True)
        _, reward, terminated, truncated, _ = self._grid.step(number)
        over = bool(terminated or truncated)
        info = Info(success=float(reward) > 0 if over else None, partial_score=float(float(reward) > 0))
        return view(self._grid), float(reward), bool(terminated), bool(truncated), info

    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """Return the seven actions of the grid."""
        empty: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
        return tuple(ToolSpec(name=name, description=text, parameters=empty) for name, text in _TOLD.items())

    def snapshot(self) -> Any:
        """Return a copy of the grid."""
        return copy.deepcopy(self._grid)

    def restore(self, state: Any) -> None:
        """Continue from a copy of `state`."""
        self._grid = copy.deepcopy(state)


class BabyAI:
    """BabyAI's `levels` with `instances` layouts each. Raises UsageError for a level unknown to minigrid."""

    name = "babyai"
    version = "2"
    capabilities = Capabilities(snapshot=True, expert=True)
    more_tasks = "raise env.options.instances, or name more levels (env.options.levels)"
    pace = Pace(
        reset_seconds=0.005, step_seconds=0.001, teacher_steps=10, prompt_tokens=250, page_tokens=120, action_tokens=8
    )
    decoys, injection = staticmethod(babyai_surface.decoys), staticmethod(babyai_surface.injection)

    def __init__(self, *, levels: str = LEVELS, instances: int = 60) -> None:
        require("env.options.instances", Range(at_least=1, at_most=100_000), instances)
        self.require_set_up()
        self._levels = levels.replace(",", " ").split()
        if not self._levels:
            raise UsageError("env.options.levels: got ''; name at least one level")
        for level in self._levels:
            _id_of(level)
        self._tasks = [self._task(level, layout) for layout in range(instances) for level in self._levels]

    @staticmethod
    def require_set_up(**options: Any) -> None:
        """Raise UsageError if minigrid is not installed."""
        if find_spec("minigrid") is None:
            raise UsageError("env.benchmark=babyai: minigrid is not installed; pip install 'r2v[babyai]'")

    def tasks(self) -> Sequence[Task]:
        """Return all tasks, layout by layout and level by level within a layout."""
        return self._tasks

    def make(self) -> BabyAIWorld:
        """Return a fresh world."""
        return BabyAIWorld()

    def expert(self, request: Request) -> str:
        """Return the next action of minigrid's bot. Raises UsageError for a goal without a layout."""
        goal = next(message.text for message in request.messages if message.role == "user")
        named = _LAYOUT.search(goal)
        if named is None:
            raise UsageError(f'babyai: the goal names no layout, as in (layout "GoToLocal 7"): {goal:.80}')
        return call(_planned(named[1], int(named[2]), tuple(_carried_out(request.messages))))

    def players(self) -> Mapping[str, Callable[[Request], str]]:
        """Return the contract check's empty player, which waits."""
        return {"empty": lambda request: call("wait")}

    def _task(self, level: str, layout: int) -> Task:
        return Task(
            task_id=f"babyai-{level.lower()}-{layout:04}",
            goal=f'{_mission(level, layout)} (layout "{level} {layout}")',
            template_id=level,
            payload={"level": level, "layout": layout},
        )


def laid_out(level: str, layout: int) -> Any:
    """Return the grid of a layout in its initial state."""
    import gymnasium
    import minigrid.envs.babyai.core.roomgrid_level as generator

    generator.print = lambda *words: None  # minigrid prints each layout that it rejects
    grid: Any = gymnasium.make(_id_of(level)).unwrapped
    grid.reset(seed=layout)
    return grid


@cache
def _id_of(level: str) -> str:
    import gymnasium
    import minigrid  # registers its levels

    assert minigrid
    env_ids = {name.split("-")[1]: name for name in gymnasium.registry if name.startswith("BabyAI-")}
    if level not in env_ids:
        raise UsageError(f"env.options.levels: {level}: no level of BabyAI; {nearest(level, env_ids)}")
    return str(env_ids[level])


@cache
def _mission(level: str, layout: int) -> str:
    return str(laid_out(level, layout).mission)


def view(grid: Any) -> str:
    """Return the agent's view as text: a header, then one line per object, door and the nearest wall, nearest first.
    Positions are in cells forward and to the side."""
    from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT

    seen = grid.gen_obs()["image"]
    width, height, _ = seen.shape
    held = grid.carrying
    lines = [
        f"you carry {f'a {held.color} {held.type}' if held else 'nothing'}; {grid.max_steps - grid.step_count} left"
    ]
    rows: list[tuple[int, int, str]] = []
    for x in range(width):
        for y in range(height):
            kind, colour, state = IDX_TO_OBJECT[seen[x, y, 0]], IDX_TO_COLOR[seen[x, y, 1]], int(seen[x, y, 2])
            ahead, aside = height - 1 - y, x - width // 2
            if kind in ("unseen", "empty", "floor", "agent") or (ahead, aside) == (0, 0):
                continue
            if kind == "wall" and aside:
                continue
            rows.append((ahead + abs(aside), aside, f"{_named(kind, colour, state)}: {_place(ahead, aside)}"))
    wall = next((row for row in sorted(rows) if row[2].startswith("wall")), None)
    return "\n".join(
        [*lines, *(text for *_, text in sorted(row for row in rows if row[2][:4] != "wall" or row == wall))]
    )


def _named(kind: str, colour: str, state: int) -> str:
    if kind == "wall":
        return kind
    return f"{('open', 'closed', 'locked')[state]} {colour} door" if kind == "door" else f"{colour} {kind}"


def _place(ahead: int, aside: int) -> str:
    side = f"{abs(aside)} {'left' if aside < 0 else 'right'}" if aside else ""
    return ", ".join(part for part in (f"{ahead} forward" if ahead else "", side) if part)


def _carried_out(messages: Sequence[Message]) -> Iterator[str]:
    """Yield the actions of a conversation that the grid executed; calls answered by an error line are left out."""
    for message, answer in zip(messages, messages[1:], strict=False):
        if message.role == "assistant" and not answer.text.startswith('{"error"'):
            tool = parse_action(message.text).action_type
            if tool in _NUMBERS:
                yield tool


class _Walk:
    """Minigrid's bot in a layout after the actions of a conversation."""

    def __init__(self, level: str, layout: int) -> None:
        from minigrid.utils.baby_ai_bot import BabyAIBot

        self.grid = laid_out(level, layout)
        self.bot: Any = BabyAIBot(self.grid)
        self.last: int | None = None

    def see(self, tool: str) -> None:
        """Replay one action, the bot's own or another's."""
        self.bot.replan(self.last)
        self.last = _NUMBERS[tool]
        self.grid.step(self.last)


_WALKS: OrderedDict[tuple[str, int, tuple[str, ...]], _Walk] = OrderedDict()
"""Cache of the latest walks by (level, layout, actions), so that a conversation's next step replays one action only."""
_KEPT_WALKS = 512


@lru_cache(maxsize=1 << 16)
def _planned(level: str, layout: int, done: tuple[str, ...]) -> str:
    """Return the bot's next action after `done`. The bot plans over what it has seen and may fail on another actor's
    moves; then a fresh bot plans from the agent's position, and if that fails too, the action is `wait`."""
    try:
        walk = _WALKS.pop((level, layout, done[:-1]), None) if done else None
        for tool in done if walk is None else done[-1:]:
            walk = walk or _Walk(level, layout)
            walk.see(tool)
        walk = walk or _Walk(level, layout)
        planned = _NAMES[int(copy.deepcopy(walk).bot.replan(walk.last))]
    except Exception:  # the bot asserts that the agent carries out the bot's own plan
        return _planned_anew(level, layout, done)
    _WALKS[level, layout, done] = walk
    if len(_WALKS) > _KEPT_WALKS:
        _WALKS.popitem(last=False)
    return planned


def _planned_anew(level: str, layout: int, done: tuple[str, ...]) -> str:
    from minigrid.utils.baby_ai_bot import BabyAIBot

    grid = laid_out(level, layout)
    for tool in done:
        grid.step(_NUMBERS[tool])
    try:
        return _NAMES[int(BabyAIBot(grid).replan(None))]
    except Exception:  # the same assertions; a waiting agent loses a step, not the episode
        return "wait"
