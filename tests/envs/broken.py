"""Benchmarks that each break the contract in one way, with the message that each must get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from r2v.envs.base import Capabilities, Info, Task
from r2v.envs.chain import ChainBenchmark, ChainEnvironment
from r2v.llm.types import Request
from r2v.wire.message import ToolSpec


class Corridors(ChainBenchmark):
    """A valid benchmark with the environment `world`: three doors and an expert that is never wrong."""

    name = "corridors"
    world: type[Any] = ChainEnvironment

    def __init__(self, **options: Any) -> None:
        super().__init__(num_tasks=60, length=3, p_easy=1.0)

    def make(self) -> Any:
        return self.world()


class _FourWorld(ChainEnvironment):
    def step(self, action: str) -> Any:
        return super().step(action)[:4]


class FourValues(Corridors):
    world = _FourWorld


class _DictObservation(ChainEnvironment):
    def reset(self, *, seed: int, task: Task) -> Any:
        observation, info = super().reset(seed=seed, task=task)
        return {"text": observation}, info


class DictObservation(Corridors):
    world = _DictObservation


class _GymnasiumInfo(ChainEnvironment):
    def reset(self, *, seed: int, task: Task) -> Any:
        return super().reset(seed=seed, task=task)[0], {}


class GymnasiumInfo(Corridors):
    world = _GymnasiumInfo


class _NumberDone(ChainEnvironment):
    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, int(terminated), truncated, info


class NumberDone(Corridors):
    world = _NumberDone


class NoCapabilities(Corridors):
    capabilities: Any = None


class NoStep(Corridors):
    world = type("Doorless", (), {"reset": ChainEnvironment.reset, "tool_specs": ChainEnvironment.tool_specs})


class DictTasks(Corridors):
    def tasks(self) -> Any:
        return [{"task_id": "a", "goal": "b"}]


class ListedTools(Corridors):
    world = type("Listed", (ChainEnvironment,), {"tool_specs": lambda self: [{"name": "go"}]})


class ExpertRaises(Corridors):
    def expert(self, request: Request) -> str:
        raise KeyError("door")


CONTRACT = {
    FourValues: "step gives a tuple of 4",
    DictObservation: "an observation that is a dict",
    GymnasiumInfo: "an info that is a dict, as Gymnasium's do",
    NumberDone: "terminated=0; expected True or False",
    NoCapabilities: "capabilities is None",
    NoStep: "without step",
    DictTasks: "tasks() holds a dict",
    ListedTools: "tool_specs holds a dict",
    ExpertRaises: "expert raised KeyError: 'door' (broken.py:",
}
"""Faults that every stage refuses in one sentence, as `r2v check-env` does."""


class _NeverSays(ChainEnvironment):
    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        return *rest, Info(partial_score=info.partial_score)


class NeverSays(Corridors):
    world = _NeverSays


class EqualGoals(Corridors):
    def tasks(self) -> Sequence[Task]:
        return [Task(task_id=t.task_id, goal="go", payload=t.payload) for t in super().tasks()]


class TuplePayloads(Corridors):
    def tasks(self) -> Sequence[Task]:
        return [Task(task_id=t.task_id, goal=t.goal, payload=(1,)) for t in super().tasks()]  # type: ignore[arg-type]


class TwiceTheId(Corridors):
    def tasks(self) -> Sequence[Task]:
        return [*super().tasks(), super().tasks()[0]]


class _Drawn(ChainEnvironment):
    plays = 0

    def reset(self, *, seed: int, task: Task) -> Any:
        _Drawn.plays += 1
        return super().reset(seed=_Drawn.plays, task=task)


class Drawn(Corridors):
    world = _Drawn
    capabilities = Capabilities(expert=True)


class _HalfState(ChainEnvironment):
    def restore(self, state: Any) -> None:
        super().restore(type(state)(questions=state.questions[::-1], hard=state.hard, right=state.right))


class HalfState(Corridors):
    world = _HalfState


class _Fragile(ChainEnvironment):
    def step(self, action: str) -> Any:
        if not action.startswith("{"):
            raise ValueError("no JSON")
        return super().step(action)


class Fragile(Corridors):
    world = _Fragile


class BadSchema(Corridors):
    world = type(
        "Schemed",
        (ChainEnvironment,),
        {"tool_specs": lambda self: (ToolSpec(name="go", description="Go.", parameters={"required": ["gate"]}),)},
    )


class Hopeless(Corridors):
    def expert(self, request: Request) -> str:
        return '{"tool":"go","door":"nowhere"}'


class NoSnapshot(Corridors):
    world = type("Plain", (), {name: getattr(ChainEnvironment, name) for name in ("reset", "step", "tool_specs")} | {
        "_page": ChainEnvironment._page,
        "__init__": ChainEnvironment.__init__,
    })  # fmt: skip


class _Generous(ChainEnvironment):
    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        return *rest, Info(success=info.success if info.success is None else True)


class Generous(Corridors):
    world = _Generous


class BeginsSolved(Generous):
    def begins_solved(self, task: Task, observation: str) -> bool:
        return True


class _CountsCalls(ChainEnvironment):
    calls = 0

    def step(self, action: str) -> Any:
        self.calls += action.startswith("{")
        *rest, info = super().step(action)
        return *rest, Info(success=info.success if info.success is None else self.calls == 3)


class CountsCalls(Corridors):
    world = _CountsCalls


class _Stingy(ChainEnvironment):
    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        return *rest, Info(success=info.success and self.snapshot().questions[0] < "8")


class Stingy(Corridors):
    world = _Stingy


class UnnamedPlayers(Corridors):
    def players(self) -> Any:
        return {"silver": self.expert}


QUIET = {
    Generous: "Info.success is True for the empty player",
    CountsCalls: "Info.success is True for the wrong player",
    Stingy: "Info.success is not True for the gold player",
    UnnamedPlayers: "players() gives {'silver'",
    NeverSays: "success was never said",
    EqualGoals: "the same goal text in two splits",
    TuplePayloads: "payload is a tuple of 1; expected a dict (task ",
    TwiceTheId: "task ids are given to more than one task",
    Drawn: "another first observation the second time",
    HalfState: "after restore in a fresh world",
    Fragile: "step('hello') raised ValueError: no JSON (broken.py:",
    BadSchema: "requires 'gate', which its properties do not have",
    Hopeless: "with door 'nowhere', which is none of",
    NoSnapshot: "has no snapshot and restore",
}
"""Faults that only `r2v check-env` reports, before a stage is run."""


class _Breaks(ChainEnvironment):
    every = 7
    steps = 0

    def step(self, action: str) -> Any:
        _Breaks.steps += 1
        if _Breaks.steps % self.every == 0:
            raise ConnectionError("the site is down")
        return super().step(action)


class Breaks(Corridors):
    """A benchmark whose environment raises now and then."""

    world = _Breaks


class AlwaysBreaks(Corridors):
    world = type("Down", (_Breaks,), {"every": 1})


class CannotBeMade(Corridors):
    def make(self) -> Any:
        raise FileNotFoundError("no browser")


class _BreaksFork(ChainEnvironment):
    def restore(self, state: Any) -> None:
        raise OSError("state lost")


class BreaksFork(Corridors):
    """A benchmark whose episodes are fine, and none can be branched."""

    world = _BreaksFork
