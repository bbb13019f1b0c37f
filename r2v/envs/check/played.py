"""Check of a benchmark's behaviour: episodes played, replayed, branched by snapshot, and given malformed actions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from r2v.data.episode import episode_id
from r2v.envs.base import Closable, Demonstrated, Info, Snapshots, Surface, Task
from r2v.envs.check.findings import RAISED, CheckFindings
from r2v.envs.check.tools import call_problem, check_tools, sample_call
from r2v.envs.guard import reset_problem, shape, step_problem
from r2v.llm.types import Request
from r2v.wire.message import Message, ToolSpec

MALFORMED = ("", "hello", "{}", "[]", '{"tool":', '{"tool":"no_such_tool"}', '{"tool":7}', "null", "\u2603" * 200)
"""Malformed actions that models do send. A world must answer them, not raise."""

Turn = tuple[str, float, bool, bool, bool | None]
"""(observation, reward, terminated, truncated, success) of a step."""


@dataclass
class Played:
    """An episode of the check; `whole` is False if a fault cut it short."""

    task: Task
    first: str
    tools: tuple[ToolSpec, ...]
    actions: list[str] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    snapshots: list[Any] = field(default_factory=list)
    whole: bool = True

    @property
    def over(self) -> bool:
        """True if the world has ended the episode."""
        return bool(self.turns) and (self.turns[-1][2] or self.turns[-1][3])


Choose = Callable[[Played], str | None]
"""Function from an episode to its next action; None after a fault of the actor."""


def check_played(
    benchmark: Any, tasks: Sequence[Task], findings: CheckFindings, *, seed: int, max_steps: int
) -> list[Played]:
    """Play the tasks and check every answer against the contract. Return the expert's episodes, [] without an
    expert."""
    able = getattr(benchmark, "capabilities", None)
    demonstrated = bool(getattr(able, "expert", False)) and isinstance(benchmark, Demonstrated)
    choose = acting("expert", benchmark.expert, seed, findings) if demonstrated else _sample_action
    keep = bool(getattr(able, "snapshot", False))
    episodes = [
        played
        for task in tasks
        if (played := play(benchmark, task, seed, choose, findings, max_steps=max_steps, keep=keep)) is not None
    ]
    findings.num_episodes += len(episodes)
    for played in episodes:
        if getattr(able, "deterministic", False) and played.whole:
            _check_again(benchmark, played, seed, findings)
        if played.snapshots:
            _check_snapshots(benchmark, played, findings)
    if demonstrated and episodes:
        _check_successes(episodes, findings, max_steps)
    if not demonstrated:
        findings.note("there is no expert: episodes were played with made-up calls, which seldom succeed")
    _check_malformed(benchmark, tasks[0], seed, findings)
    if episodes and isinstance(benchmark, Surface):
        _check_surface(benchmark, episodes[0], findings)
    return episodes if demonstrated else []


def play(
    benchmark: Any,
    task: Task,
    seed: int,
    choose: Choose,
    findings: CheckFindings,
    *,
    max_steps: int,
    keep: bool = False,
) -> Played | None:
    """Play a task in a fresh world. Return None if the world or its first observation is faulty."""
    with _world(benchmark, findings) as env:
        played = None if env is None else _opened(env, task, seed, findings)
        if played is None:
            return None
        while played.whole and not played.over and len(played.turns) < max_steps:
            if keep and isinstance(env, Snapshots):
                played.snapshots.append(findings.call("snapshot", env.snapshot))
            action = choose(played)
            if action is None:
                played.whole = False
                break
            _take(env, played, action, findings)
        return played


@contextmanager
def _world(benchmark: Any, findings: CheckFindings) -> Iterator[Any]:
    """Yield a fresh world and close it at the end; yield None if `make` fails."""
    env = _made_world(benchmark, findings)
    try:
        yield env
    finally:
        if isinstance(env, Closable):
            findings.call("close", env.close)


def _made_world(benchmark: Any, findings: CheckFindings) -> Any:
    env = findings.call("make()", benchmark.make)
    if env is RAISED:
        return None
    lacks = [name for name in ("reset", "step", "tool_specs") if not callable(getattr(env, name, None))]
    if findings.fault(f"make() gives {shape(env)} without {', '.join(lacks)}" if lacks else None):
        return None
    declared = getattr(getattr(benchmark, "capabilities", None), "snapshot", False)
    if declared and not isinstance(env, Snapshots):
        findings.fault(f"capabilities say snapshot=True, and {type(env).__name__} has no snapshot and restore")
    if not declared and isinstance(env, Snapshots):
        findings.note("the environment has snapshot and restore, and capabilities say snapshot=False")
    return env


def _opened(env: Any, task: Task, seed: int, findings: CheckFindings) -> Played | None:
    answer = findings.call("reset", lambda: env.reset(seed=seed, task=task), f"task {task.task_id}")
    if answer is RAISED or findings.fault(reset_problem(answer)):
        return None
    observation, info = answer
    _check_text("reset", observation, findings)
    if info.env_fault is not None:
        findings.fault(f"reset says env_fault: {info.env_fault!r:.80}", f"task {task.task_id}")
        return None
    if info.success is not None:
        findings.fault(f"reset gives Info.success={info.success}: it is None until the episode ends")
    specs = findings.call("tool_specs()", env.tool_specs)
    return Played(task=task, first=observation, tools=() if specs is RAISED else check_tools(specs, findings))


def _take(env: Any, played: Played, action: str, findings: CheckFindings) -> None:
    """Execute a step; set `played.whole` to False if the episode cannot continue."""
    answer = findings.call(f"step({action!r:.60})", lambda: env.step(action))
    if answer is RAISED or findings.fault(step_problem(answer)):
        played.whole = False
        return
    observation, reward, terminated, truncated, info = answer
    _check_text("step", observation, findings)
    _check_info(played, info, terminated, truncated, findings)
    played.actions.append(action)
    played.turns.append((observation, reward, terminated, truncated, info.success))
    played.whole = info.env_fault is None


def _check_text(method: str, observation: str, findings: CheckFindings) -> None:
    try:
        observation.encode()
    except UnicodeEncodeError:
        findings.fault(f"{method} gives an observation with half of a surrogate pair, which cannot be written down")


def _check_info(played: Played, info: Info, terminated: bool, truncated: bool, findings: CheckFindings) -> None:
    where = f"task {played.task.task_id}, step {len(played.turns)}"
    if info.env_fault is not None:
        findings.fault(f"step says env_fault: {info.env_fault!r:.80}", where)
    elif terminated and info.success is None:
        findings.fault("an episode ended (terminated=True) and success was never said (Info.success)", where)
    elif not (terminated or truncated) and info.success is not None:
        findings.note(f"Info.success={info.success} was said before an episode ended")


def _sample_action(played: Played) -> str | None:
    """Return calls of each tool in turn, with arguments of the right types."""
    return sample_call(played.tools[len(played.turns) % len(played.tools)]) if played.tools else "hello"


def acting(name: str, act: Callable[[Request], str], seed: int, findings: CheckFindings) -> Choose:
    """Return an actor of the benchmark, such as its expert, as a `Choose`; it sees messages, tools and key only."""

    def choose(played: Played) -> str | None:
        step = len(played.turns)
        request = Request(messages=_messages(played), key=(seed, played.task.task_id, step, "llm"), tools=played.tools)
        where = f"task {played.task.task_id}, step {step}"
        action = findings.call(name, lambda: act(request), where)
        if action is RAISED:
            return None
        if not isinstance(action, str):
            findings.fault(f"{name} gives {shape(action)}; expected the text of an action")
            return None
        if problem := call_problem(action, played.tools):
            findings.fault(f"{name} {problem}", where)
        return action

    return choose


def _messages(played: Played) -> tuple[Message, ...]:
    turns = [Message(role="user", content=played.task.goal), Message(role="tool", content=played.first)]
    for action, (observation, *_) in zip(played.actions, played.turns, strict=True):
        turns += [Message(role="assistant", content=action), Message(role="tool", content=observation)]
    return tuple(turns)


def _check_successes(episodes: Sequence[Played], findings: CheckFindings, max_steps: int) -> None:
    whole = [played for played in episodes if played.whole]
    if open_still := [played for played in whole if not played.over]:
        findings.fault(f"the expert has not ended a task after {max_steps} steps", f"task {open_still[0].task.task_id}")
    if whole and not any(played.turns and played.turns[-1][4] for played in whole):
        findings.fault(f"the expert succeeded in none of {len(whole)} episodes: a collection has nothing to learn from")


def _check_again(benchmark: Any, played: Played, seed: int, findings: CheckFindings) -> None:
    """Replay the actions in a fresh world while an episode of another seed runs in a second one."""
    quiet, where = CheckFindings(), f"episode {episode_id(played.task.task_id, seed)}"
    with _world(benchmark, quiet) as env, _world(benchmark, quiet) as other:
        again = None if env is None else _opened(env, played.task, seed, quiet)
        beside = None if other is None else _opened(other, played.task, seed + 1, quiet)
        if again is None:
            findings.fault(f"cannot be set up a second time: {'; '.join(quiet.faults)}", where)
            return
        if again.first != played.first:
            findings.fault(f"reset gives another first observation the second time; {_REMEDY}", where)
            return
        for step, action in enumerate(played.actions):
            if beside is not None and beside.whole and not beside.over:
                _take(other, beside, action, quiet)
            _take(env, again, action, quiet)
            if not again.whole or again.turns[-1] != played.turns[step]:
                problem = f"the same actions meet other answers in a fresh world; {_REMEDY}"
                findings.fault(problem, f"{where}, step {step}")
                return


_REMEDY = "let every draw depend on seed and task alone, keep state in the world, or say deterministic=False"


def _check_snapshots(benchmark: Any, played: Played, findings: CheckFindings) -> None:
    """Restore the middle of the episode in a fresh world, twice: the rest must repeat exactly."""
    middle = len(played.actions) // 2
    with _world(benchmark, CheckFindings()) as env:
        if not isinstance(env, Snapshots) or len(played.snapshots) <= middle:
            return
        for attempt in ("a fresh world", "the same world a second time"):
            if findings.call(f"restore in {attempt}", lambda: env.restore(played.snapshots[middle])) is RAISED:
                return
            branch = Played(task=played.task, first=played.first, tools=played.tools)
            for step in range(middle, len(played.actions)):
                _take(env, branch, played.actions[step], findings)
                if not branch.whole or branch.turns[-1] != played.turns[step]:
                    findings.fault(
                        f"after restore in {attempt} the same actions meet other answers; a snapshot holds the whole "
                        "state, and playing on does not change it",
                        f"task {played.task.task_id}, snapshot of step {middle}, step {step}",
                    )
                    return


def _check_malformed(benchmark: Any, task: Task, seed: int, findings: CheckFindings) -> None:
    quiet = CheckFindings()
    for action in MALFORMED:
        with _world(benchmark, quiet) as env:
            opened = None if env is None else _opened(env, task, seed, quiet)
            if opened is not None:
                _take(env, opened, action, findings)


def _check_surface(benchmark: Any, played: Played, findings: CheckFindings) -> None:
    decoys = findings.call("decoys", lambda: benchmark.decoys(played.first, played.task.goal, 2, 0.5))
    if decoys is not RAISED and not (isinstance(decoys, list) and all(isinstance(line, str) for line in decoys)):
        findings.fault(f"decoys gives {shape(decoys)}; expected a list of lines")
    planted = findings.call("injection", lambda: benchmark.injection(played.first, played.task.goal, "direct", 0.5))
    if planted is not RAISED and not (
        isinstance(planted, tuple) and len(planted) == 2 and all(isinstance(part, str) for part in planted)
    ):
        findings.fault(f"injection gives {shape(planted)}; expected (line, canary)")
