"""Desk's `Benchmark`: tasks, worlds, an expert, and a surface for the perturbations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from r2v.constraints import Range, require
from r2v.envs.base import Capabilities, Task
from r2v.envs.desk import surface
from r2v.envs.desk.environment import DeskEnvironment
from r2v.envs.desk.expert import DeskExpert
from r2v.envs.desk.tasks import make_tasks
from r2v.envs.desk.vocabulary import GUEST
from r2v.envs.pace import Pace
from r2v.llm.types import Request

DESK_VERSION = "1"
"""Version of generator, pages, checker and expert together; any change needs a new one (docs/desk.md)."""


class Desk:
    """A service desk: find a record among look-alikes, open it, carry out one irreversible act.

    `num_tasks` ordinary tasks (always a prefix of the same list) and `num_heldout` tasks of templates used nowhere
    else; `slips` and `weakness` are the expert's flaws.
    """

    name = "desk"
    more_tasks = "raise env.options.num_tasks"
    capabilities = Capabilities(snapshot=True, expert=True, untrusted=rf'"via"\s*:\s*"{GUEST}"')
    pace = Pace(
        reset_seconds=0.0007,
        step_seconds=0.00003,
        teacher_steps=5.2,
        remembered=0.79,
        prompt_tokens=150,
        page_tokens=70,
        action_tokens=19,
        basis={
            "teacher_steps": "measured over 200 tasks",
            "remembered": "measured, 8 methods on 40 tasks",
            "differing": "assumed",
            "cpu_share": "assumed",
        },
    )
    decoys, injection = staticmethod(surface.decoys), staticmethod(surface.injection)

    def __init__(
        self,
        *,
        version: str = DESK_VERSION,
        num_tasks: int = 1300,
        num_heldout: int = 60,
        slips: float = 0.03,
        weakness: float = 0.4,
    ) -> None:
        for name, count in (("num_tasks", num_tasks), ("num_heldout", num_heldout)):
            require(f"env.options.{name}", Range(at_least=0, at_most=1_000_000), count)
        for name, share in (("slips", slips), ("weakness", weakness)):
            require(f"env.options.{name}", Range(at_least=0, at_most=1), share)
        self.version = version
        self._expert = DeskExpert(slips=slips, weakness=weakness)
        self._tasks = make_tasks(version, num_tasks, num_heldout)

    def tasks(self) -> Sequence[Task]:
        """Return every task, ordinary ones first."""
        return self._tasks

    def make(self) -> DeskEnvironment:
        """Return a fresh desk."""
        return DeskEnvironment(self.version)

    def expert(self, request: Request) -> str:
        """Return the stand-in teacher's action; see `r2v.envs.desk.expert`."""
        return self._expert(request)

    def players(self) -> Mapping[str, Callable[[Request], str]]:
        """Return the contract check's gold player: the expert without its flaws."""
        return {"gold": DeskExpert(slips=0.0, weakness=0.0)}
