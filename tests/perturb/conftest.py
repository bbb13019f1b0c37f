"""A desk whose expert makes no mistakes, and episodes played in it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from r2v.config import CategoryConfig, InferenceConfig, PerturbationMode, PerturbationsConfig
from r2v.data.episode import Condition, Episode
from r2v.envs.desk import Desk
from r2v.llm.types import Request
from r2v.rollout.actors import Act
from r2v.rollout.session import EpisodeSpec, RolloutWorld, Session

Perturbations = Callable[..., PerturbationsConfig]
Player = Callable[..., Episode]


@pytest.fixture(scope="session")
def desk() -> Desk:
    """Return a desk with a faultless expert."""
    return Desk(slips=0.0, weakness=0.0)


@pytest.fixture(scope="session")
def only() -> Perturbations:
    """Return a function that makes perturbations of the named categories only: `only(distractor=0.2)`, or a
    CategoryConfig."""

    def make(
        held_out_families: tuple[str, ...] = (),
        modes: dict[str, PerturbationMode] | None = None,
        **given: float | CategoryConfig,
    ) -> PerturbationsConfig:
        named = {
            name: value if isinstance(value, CategoryConfig) else CategoryConfig(prob=value)
            for name, value in given.items()
        }
        off = {name: CategoryConfig(prob=0.0) for name in PerturbationsConfig.categories()}
        families = list(held_out_families)
        return PerturbationsConfig(held_out=[], held_out_families=families, modes=modes or {}, **{**off, **named})

    return make


@pytest.fixture(scope="session")
def play(desk: Desk) -> Player:
    """Return a function that has the expert play the desk's task number `index`."""

    def run(
        index: int,
        perturbations: PerturbationsConfig | None = None,
        condition: Condition = "noisy",
        perturbation_seed: int = 101,
        max_steps: int = 20,
    ) -> Episode:
        world = RolloutWorld(desk, perturbations or PerturbationsConfig(), InferenceConfig(max_steps=max_steps))
        session = Session(
            world,
            EpisodeSpec(
                task=desk.tasks()[index],
                seed=1,
                split="train",
                condition=condition if perturbations else "clean",
                perturbation_seed=perturbation_seed if perturbations else None,
            ),
        )
        session.open()
        while session.termination is None:
            view = session.view()
            text = desk.expert(Request(messages=view.messages, key=view.key("llm")))
            session.apply(Act(text=text, source="teacher"))
        return session.episode()

    return run
