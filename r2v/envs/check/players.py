"""Grader check: the benchmark's outcome for players whose right outcome is certain.

Success must be 0 for an empty player, which ends a task without working on it, 0 for a wrong player, which does
something else, and 1 for a gold player. A benchmark may define its own (`Audited`). Otherwise the empty player calls
the tools without required arguments, the wrong one alters the gold player's calls or draws calls, and the gold one is
the expert.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from r2v.data.action import parse_action
from r2v.envs.base import Audited, BeginsSolved, Task
from r2v.envs.check.findings import RAISED, CheckFindings
from r2v.envs.check.played import Choose, Played, acting, play
from r2v.envs.check.tools import drawn_call, drawn_text, sample_call
from r2v.randomness import generator

_SLOW_STEPS, _WRONG_STEPS = 12, 3
"""Step limit of the empty and wrong players in a slow world; steps of a derived wrong player before it ends a task."""
_DRAWS = 5
"""Number of derived wrong players per task; the grader is at fault only if all succeed, since one may be lucky."""
_FALSE = (
    "Info.success is True for the {} player, who {}: let it be True only where the goal is reached, or say by "
    "begins_solved(task, observation) that the task begins so"
)


def check_players(
    benchmark: Any, tasks: Sequence[Task], experts: Sequence[Played], findings: CheckFindings, *, seed: int, steps: int
) -> None:
    """Play the tasks with an empty, a wrong and a gold player. `experts` are the episodes of the expert, if any."""
    own = findings.call("players()", benchmark.players) if isinstance(benchmark, Audited) else {}
    if own is RAISED or findings.fault(_players_problem(own)):
        return
    acts = {name: acting(f"the {name} player", act, seed, findings) for name, act in own.items()}
    gold = acts.get("gold") or (acting("expert", benchmark.expert, seed, findings) if experts else None)
    empty = acts.get("empty", _end)
    wrong = [acts["wrong"]] if "wrong" in acts else [_wrong(benchmark, gold, empty, seed, n) for n in range(_DRAWS)]
    few = min(steps, _SLOW_STEPS) if getattr(getattr(benchmark, "capabilities", None), "waits", False) else steps
    episodes: dict[str, list[Played]] = {"empty": [], "wrong": [], "gold": []}

    def succeeds(name: str, task: Task, choose: Choose, most: int = few) -> bool:
        played = play(benchmark, task, seed, choose, findings, max_steps=most)
        if played is None or not played.whole:  # the findings already have the fault
            return False
        episodes[name].append(played)
        return _succeeded(played)

    for task in tasks:
        where = f"task {task.task_id}"
        empty_succeeds = succeeds("empty", task, empty)
        if empty_succeeds and _begins_solved(benchmark, task, episodes["empty"][-1], findings):
            findings.note(f"{where} is solved by doing nothing, as the benchmark says: its grader was not tried")
            episodes["empty"].pop()
            continue
        if empty_succeeds:
            findings.fault(_FALSE.format("empty", "does nothing for the task"), where)
        wins = next((n for n, choose in enumerate(wrong) if not succeeds("wrong", task, choose)), len(wrong))
        if wins == len(wrong):
            findings.fault(_FALSE.format("wrong", "does something else"), where)
        elif wins:
            findings.note(f"a drawn wrong player succeeded in {where}, and the next did not: luck, or a lax grader")
    if "gold" in acts:
        for task in tasks:
            succeeds("gold", task, acts["gold"], steps)
    else:  # an expert's unfinished task is already a fault
        episodes["gold"] += [played for played in experts if played.whole and played.over]
    if failed := [played for played in episodes["gold"] if not _succeeded(played)]:
        problem = "Info.success is not True for the gold player, who solves every task: mend the grader or the expert, "
        findings.fault(f'{problem}or give players() a "gold" without mistakes', f"task {failed[0].task.task_id}")
    for name in ("empty", "wrong"):
        if episodes[name] and not any(played.over for played in episodes[name]):
            findings.note(
                f"the {name} player ended none of its {len(episodes[name])} tasks in {few} steps, so the grader "
                f'said nothing; if an action ends a task, let players()["{name}"] give it'
            )
    findings.outcomes = {name: (sum(map(_succeeded, plays)), len(plays)) for name, plays in episodes.items() if plays}


def _players_problem(own: Any) -> str | None:
    if isinstance(own, Mapping) and set(own) <= {"empty", "wrong", "gold"} and all(map(callable, own.values())):
        return None
    return f"players() gives {own!r:.60}; expected actors by the names empty, wrong and gold"


def _begins_solved(benchmark: Any, task: Task, played: Played, findings: CheckFindings) -> bool:
    if not isinstance(benchmark, BeginsSolved):
        return False
    return findings.call("begins_solved", lambda: benchmark.begins_solved(task, played.first)) is True


def _succeeded(played: Played) -> bool:
    return bool(played.turns) and played.turns[-1][4] is True


def _end(played: Played) -> str:
    """Return calls of the tools without required arguments in turn, then an empty action."""
    plain = [tool for tool in played.tools if not tool.parameters.get("required")]
    at = len(played.turns) % (len(plain) + 1)
    return sample_call(plain[at]) if at < len(plain) else ""


def _wrong(benchmark: Any, gold: Choose | None, empty: Choose, seed: int, number: int) -> Choose:
    """Return derived wrong player `number`. In a shared world it draws no names from the page, to change nothing."""
    able = getattr(benchmark, "capabilities", None)
    shared = getattr(able, "needs_network", False) or not getattr(able, "parallel", True)

    def choose(played: Played) -> str | None:
        step = len(played.turns)
        if step >= _WRONG_STEPS:
            return empty(played)
        page = "" if shared else played.turns[-1][0] if played.turns else played.first
        # With a gold player, all steps share one draw: a new one per step may hit the right action by chance.
        draw = generator("check-env", "wrong", seed, played.task.task_id, 0 if gold else step, number)
        right = parse_action((gold(played) if gold is not None else None) or "")
        for tool in played.tools:
            if tool.name == right.action_type and right.arguments:
                return drawn_call(tool, draw, page, right.arguments)
        others = [tool for tool in played.tools if tool.name != right.action_type]
        return drawn_call(draw.choice(others), draw, page, {}) if others else drawn_text(draw)

    return choose
